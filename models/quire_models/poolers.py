"""Parts of pooling: how hidden states of a prompt become one vector, or one per token.

Frozen descriptions, as in `quire_models.parts`; they import torch only when they are built.

    a head is called with (x [rows, width], adapters) and returns [rows, outputs]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from quire_models.parts import Part

if TYPE_CHECKING:
    from torch import nn

    from quire_models.make import Make

Take = Literal["last", "first", "mean", "every"]
Finish = Literal["none", "normalize", "softmax", "sigmoid"]

TAKES: tuple[Take, ...] = ("last", "first", "mean", "every")


@dataclass(frozen=True)
class Dense:
    """act(x weightᵀ + bias); `act` a name in quire_kernels.ops.ACTS."""

    outputs: int
    bias: bool = True
    act: str = "identity"

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, adapters) -> [rows, outputs]."""
        from quire_models.heads import DenseLayer

        return DenseLayer(width, self, make)


@dataclass(frozen=True)
class Normalize:
    """x / |x|, between the layers of a head."""

    def build(self, width: int, make: Make) -> nn.Module:
        """A module x -> [rows, width]."""
        from quire_models.heads import NormalizeLayer

        return NormalizeLayer()


@dataclass(frozen=True)
class Head:
    """Dense layers and norms, one after another. Its parameters are those of `heads.<name>.<number of the layer>`."""

    layers: tuple[Dense | Part, ...]

    def outputs(self, width: int) -> int:
        """Size of what it gives, for inputs of `width`."""
        return next((layer.outputs for layer in reversed(self.layers) if isinstance(layer, Dense)), width)

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, adapters) -> [rows, outputs]."""
        from quire_models.heads import PoolingHead

        return PoolingHead(width, self, make)


@dataclass(frozen=True)
class Pooler:
    """One task's way: which hidden states it takes, what they go through, how the result is finished.

    take: of the last token, the first, the mean of all, or every one for itself. head: name of a head in
    `Pooling.heads`, None for the hidden states as they are. finish: to length 1, or to probabilities.
    """

    take: Take
    head: str | None = None
    finish: Finish = "none"


@dataclass(frozen=True)
class Pooling:
    """All that a model can give beside text.

    poolers: by task (`quire.pooling.POOLING_TASKS`). heads: by name; several tasks may share one. dimensions: numbers
    of an embedding that a request may ask for, as in `quire.types.ModelInfo`.
    """

    poolers: Mapping[str, Pooler]
    heads: Mapping[str, Head] = field(default_factory=dict)
    dimensions: tuple[int, ...] | None = None


def embedding(take: Take, head: str | None = None, finish: Finish = "normalize") -> dict[str, Pooler]:
    """The poolers of a model that embeds: the whole prompt, or each token."""
    return {"embed": Pooler(take, head, finish), "token_embed": Pooler("every", head, finish)}


def classification(take: Take, head: str, finish: Finish) -> dict[str, Pooler]:
    """The poolers of a model that classifies: the whole prompt, or each token."""
    return {"classify": Pooler(take, head, finish), "token_classify": Pooler("every", head, finish)}
