"""What the layers of a model share while a step runs: the step itself, and the operations that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import pad

from quire.errors import PluginError
from quire_kernels.select import Ops
from quire_plugins.transformers_fallback.tracing import AttentionCall

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch


class ModelStep:
    """The `Step` of a model that serves.

    forward: the current step. adapters: those of the current step, or of its logits. rows: what they are bound for. The
    calls of attention come in the order in which they were traced, each with pages of its own.
    """

    def __init__(self, ops: Ops, calls: tuple[AttentionCall, ...]) -> None:
        self.forward: ForwardBatch | None = None
        self.adapters: Any = None
        self.rows = 0
        self._ops, self._calls = ops, calls
        self._next = 0

    def begin(self, forward: ForwardBatch) -> None:
        """Make this the current step."""
        self.forward, self._next = forward, 0
        self.adapters, self.rows = forward.adapters, len(forward.tokens)

    def adapters_for(self, rows: int) -> Any:
        """The adapters of the current step, for a module that gets this many rows. Raises PluginError."""
        if self.adapters is not None and rows != self.rows:
            raise PluginError(
                "An adapter changes a layer that is not applied to every token, which cannot be computed."
            )
        return self.adapters

    @property
    def current(self) -> ForwardBatch:
        """The step that runs now."""
        assert self.forward is not None, "no step has begun"
        return self.forward

    def enter(self, call: int) -> ForwardBatch:
        """The current step, for the layer that makes this call of attention itself."""
        self._next = call + 1
        return self.current

    def attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float | None, options: dict[str, Any]
    ) -> Tensor:
        index = self._next
        forward = self.enter(index)
        call = self._calls[index]
        q, k, v = q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)  # [tokens, heads, head_dim]
        narrow = call.head_dim - call.value_dim
        if narrow:
            v = pad(v, (0, narrow))
        if not call.causal:
            return self._ops.row_attention(q, k, v, forward.rows, call.scale, call.window).unsqueeze(0)
        k_pool, v_pool = forward.kv.k[index], forward.kv.v[index]
        self._ops.write_kv(k, v, k_pool, v_pool, forward.slot_mapping)
        seen = self._ops.paged_attention(q, k_pool, v_pool, forward.rows, call.scale, call.window, call.softcap)
        return (seen[..., : call.value_dim] if narrow else seen).unsqueeze(0)

    def mix_experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        computed: Tensor = type(module).forward.__wrapped__(module, x, chosen, weights)
        return computed
