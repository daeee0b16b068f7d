"""What the layers of a model share while a step runs: the step itself, and the operations that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import pad

from quire.errors import CheckpointError, PluginError
from quire_kernels.select import Ops
from quire_plugins.transformers_fallback.state.rows import RowGroup, row_groups
from quire_plugins.transformers_fallback.tracing import AttentionCall, mask_of

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch


class ModelStep:
    """The `Step` of a model that serves.

    forward: the current step. adapters: those of the current step, or of its logits. rows: what they are bound for. The
    calls of attention come in the order in which they were traced, each with pages of its own. checks_masks: compare
    masks with those that were traced.
    """

    checks_masks = False

    def __init__(self, ops: Ops, calls: tuple[AttentionCall, ...]) -> None:
        self.forward: ForwardBatch | None = None
        self.adapters: Any = None
        self.rows = 0
        self._ops, self._calls = ops, calls
        self._next = 0
        self._groups: list[RowGroup] | None = None
        self._bind: Callable[[int], Any] | None = None

    def begin(self, forward: ForwardBatch) -> None:
        """Make this the current step."""
        self.forward, self._next, self._groups = forward, 0, None
        self.adapters, self.rows = forward.adapters, len(forward.tokens)

    def adapters_for(self, rows: int) -> Any:
        """The adapters of the current step, for a module that gets this many rows. Raises PluginError."""
        if self._bind is not None:
            return self._bind(rows)
        if self.adapters is not None and rows != self.rows:
            raise PluginError(
                "An adapter changes a layer that is not applied to every token, which cannot be computed."
            )
        return self.adapters

    @contextmanager
    def encode(self, bind: Callable[[int], Any]) -> Iterator[None]:
        """While a picture is computed, whose layers get other rows than tokens. bind: adapters for so many rows."""
        saved = self.adapters
        self.adapters, self._bind = bind(1), bind
        try:
            yield
        finally:
            self.adapters, self._bind = saved, None

    def check(self, module: Any, mask: Any, call: AttentionCall, options: dict[str, Any]) -> None:
        """Raise CheckpointError if a mask is not that of a call as it was traced."""
        kind = mask_of(module, mask, options)
        if kind.other or (kind.kind == "causal", kind.window, kind.chunk) != (call.causal, call.window, call.chunk):
            raise CheckpointError(
                f"with a picture, its layer {call.path} masks attention in another way ({kind.other or kind.kind})"
            )

    @contextmanager
    def only(self, tokens: Tensor) -> Iterator[None]:
        """While some tokens of the step are computed, int64 [n]: the adapters are theirs."""
        saved = self.adapters, self.rows
        if self.adapters is not None:
            self.adapters, self.rows = _selected(self.adapters, tokens), len(tokens)
        try:
            yield
        finally:
            self.adapters, self.rows = saved

    def row_groups(self) -> list[RowGroup]:
        """The rows of the step, as modules that keep state compute them."""
        if self._groups is None:
            self._groups = row_groups(self.current)
        return self._groups

    @property
    def current(self) -> ForwardBatch:
        """The step that runs now."""
        assert self.forward is not None, "no step has begun"
        return self.forward

    def enter(self, call: int, mask: Any = None) -> ForwardBatch:
        """The current step, for the layer that makes this call of attention itself, with this mask."""
        self._next = call + 1
        if self.checks_masks and mask is not None:
            self.check(None, mask, self._calls[call], {})
        return self.current

    def attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float | None, options: dict[str, Any]
    ) -> Tensor:
        index = self._next
        forward = self.enter(index)
        call = self._calls[index]
        if self.checks_masks:
            self.check(module, mask, call, options)
        q, k, v = q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)  # [tokens, heads, head_dim]
        if not call.causal:
            v = pad(v, (0, call.head_dim - call.value_dim))
            seen = self._ops.row_attention(q, k, v, forward.rows, call.scale, call.window)
            return seen[..., : call.value_dim].unsqueeze(0)
        chosen: dict[str, Any] = {} if call.chunk is None else {"chunk": call.chunk}
        if call.has_sinks:
            chosen["sinks"] = options["s_aux"].float().flatten()
        k_pool, v_pool = forward.kv.k[index], forward.kv.v[index]
        self._ops.write_kv(k, v, k_pool, v_pool, forward.slot_mapping)
        return self._ops.paged_attention(
            q, k_pool, v_pool, forward.rows, call.scale, call.window, call.softcap, **chosen
        ).unsqueeze(0)

    def mix_experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        computed: Tensor = type(module).forward.__wrapped__(module, x, chosen, weights)
        return computed


def _selected(adapters: Any, tokens: Tensor) -> Any:
    """What adapters bound for a step are for some of its tokens."""
    if isinstance(adapters, Mapping):
        return {runtime: segments.select(tokens) for runtime, segments in adapters.items()}
    return adapters.select(tokens)
