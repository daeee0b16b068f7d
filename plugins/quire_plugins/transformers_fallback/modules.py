"""Quire's modules with the call signatures of transformers' modules: without a step as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.experts import ExpertInputs, Experts
from quire_models.modules.projection import Projection, apply_adapters
from quire_models.parts.moe import Expert, Moe, softmax_router
from quire_plugins.transformers_fallback.step import ModelStep

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder


class StepProjection(Projection):
    """A `Projection` that takes the adapters of the current step."""

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        sizes: Mapping[str, int],
        builder: ModuleBuilder,
        step: ModelStep,
    ) -> None:
        super().__init__(weight, bias, sizes, builder)
        self._step = step
        self.out_features, self.in_features = self.outputs, self.inputs

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x [..., inputs] -> [..., outputs]; with adapters, the rows of x are the tokens of the step."""
        y = self.multiply(x)
        if self.delta is None or self._step.adapters is None:
            return y
        rows = x.reshape(-1, self.inputs)
        return self.delta(y.view(-1, self.outputs), rows, self._step.adapters_for(len(rows))).view(y.shape)


class FusedProjection(StepProjection):
    """Several matrices with the same input, multiplied at once when the first of them is called.

    sizes: outputs of each, by name.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        sizes: Mapping[str, int],
        builder: ModuleBuilder,
        step: ModelStep,
    ) -> None:
        super().__init__(weight, bias, sizes, builder, step)
        self._sizes = list(sizes.values())
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def output(self, x: Tensor, index: int) -> Tensor:
        """The outputs of one matrix for x [..., inputs]."""
        if self._input is not x:
            self._input, self._outputs = x, self(x).split(self._sizes, -1)
        found = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._input, self._outputs = None, ()
        return found


class FusedOutput(nn.Module):
    """One of the matrices of a `FusedProjection`, in the place of the module that had it."""

    def __init__(self, fused: FusedProjection, index: int) -> None:
        super().__init__()
        self._of = (fused, index)  # in a tuple, so that the fused matrix is no submodule of this one

    def forward(self, x: Tensor) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        fused, index = self._of
        return fused.output(x, index)


class StepExperts(Experts):
    """The experts of a mixture, which transformers' modules have chosen."""

    def __init__(self, width: int, expert: Expert, count: int, builder: ModuleBuilder, step: ModelStep) -> None:
        super().__init__(width, Moe(expert, count, softmax_router(1)), builder)
        self._step = step

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        """x [tokens, width]; chosen, weights [tokens, top_k] -> [tokens, width]."""
        inputs = ExpertInputs(x, weights.float(), chosen)
        return apply_adapters(self, self.bound(*inputs), inputs, self._step.adapters)


class StepEmbedding(EmbeddingTable):
    """The embedding table of a model. scale: factor of the rows. head: the language head if it shares the table."""

    def __init__(self, rows: int, width: int, scale: float, builder: ModuleBuilder, step: ModelStep) -> None:
        super().__init__(rows, width, builder)
        self.scale, self._step = scale, step
        self._head: tuple[Projection, ...] = ()

    def share(self, head: Projection) -> None:
        """Let a language head, which may pack and empty the parameter, share this table."""
        self._head = (head,)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the table for ids int64, [len(ids), width]. May be called from any thread."""
        if self._head and not len(self.weight):
            return self._head[0].rows(ids)
        return super().rows(ids)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] -> scaled rows [..., width]."""
        flat = ids.reshape(-1)
        if self._head and not len(self.weight):
            found = self._head[0].rows(flat)
            found = found if self.scale == 1.0 else found.mul_(self.scale)
        else:
            found = self.look_up(flat, self.scale)
        if self.delta is not None and self._step.adapters is not None:
            found = self.delta(found, flat, self._step.adapters_for(len(flat)))
        return found.view(*ids.shape, self.width)


class BodyOutput(nn.Module):
    """In the place of a model's body: returns the hidden states that it is given, so that only the head is computed.

    body: whose other attributes, such as factors of logits, it has.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._of = (body,)  # in a tuple, so that the body is no submodule of this one
        self.hidden: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_of" or name in ("_parameters", "_buffers", "_modules"):
            return super().__getattr__(name)
        return getattr(self._of[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> _HiddenOnly:
        """The hidden states [1, rows, width], in the form of an output of transformers."""
        return _HiddenOnly(self.hidden)

    @property
    def decoder(self) -> BodyOutput:
        """This module too: some models call a part of their body."""
        return self


class _HiddenOnly:
    """An output with hidden states; everything else in it is None."""

    def __init__(self, hidden: Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
