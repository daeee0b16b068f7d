"""Parts of pooling: how hidden states of a prompt become one vector, or one vector per token.

Frozen descriptions that import torch only when they are built.

    a head is called with (x [rows, width], adapters) and returns [rows, outputs]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from quire_models.parts.decoder import Part

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

PoolingType = Literal["last", "first", "mean", "every"]
PoolingActivation = Literal["none", "normalize", "softmax", "sigmoid"]


@dataclass(frozen=True)
class Dense:
    """Linear layer with activation: act(x weightᵀ + bias). act: a name in quire_kernels.ops.ACTS."""

    outputs: int
    bias: bool = True
    act: str = "identity"

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, adapters) -> [rows, outputs]."""
        from quire_models.modules.pooling_heads import DenseLayer

        return DenseLayer(width, self, builder)


@dataclass(frozen=True)
class Normalize:
    """x / |x|, between the layers of a head."""

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module x -> [rows, width]."""
        from quire_models.modules.pooling_heads import NormalizeLayer

        return NormalizeLayer()


@dataclass(frozen=True)
class Head:
    """Dense layers and normalizations in order. The parameters are named `heads.<name>.<index of the layer>`."""

    layers: tuple[Dense | Part, ...]

    def outputs(self, width: int) -> int:
        """Output size for inputs of `width`."""
        return next((layer.outputs for layer in reversed(self.layers) if isinstance(layer, Dense)), width)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, adapters) -> [rows, outputs]."""
        from quire_models.modules.pooling_heads import PoolingHead

        return PoolingHead(width, self, builder)


@dataclass(frozen=True)
class Pooler:
    """How one task pools: which hidden states, through which head, with which final activation.

    pooling_type: hidden state of the last token, of the first, the mean of all, or every token separately. head: name
    of a head in `Pooling.heads`, None for the plain hidden states. activation: normalization to length 1, softmax or
    sigmoid.
    """

    pooling_type: PoolingType
    head: str | None = None
    activation: PoolingActivation = "none"


@dataclass(frozen=True)
class Pooling:
    """All pooling tasks of a model.

    poolers: by task (`quire.params.pooling.POOLING_TASKS`). heads: by name; tasks may share one. dimensions:
    embedding sizes that a request may ask for, as in `quire.types.ModelInfo`.
    """

    poolers: Mapping[str, Pooler]
    heads: Mapping[str, Head] = field(default_factory=dict)
    dimensions: tuple[int, ...] | None = None


def embedding_poolers(
    take: PoolingType, head: str | None = None, finish: PoolingActivation = "normalize"
) -> dict[str, Pooler]:
    """Poolers of an embedding model: for the whole prompt and for each token."""
    return {"embed": Pooler(take, head, finish), "token_embed": Pooler("every", head, finish)}


def classification_poolers(take: PoolingType, head: str, finish: PoolingActivation) -> dict[str, Pooler]:
    """Poolers of a classifier: for the whole prompt and for each token."""
    return {"classify": Pooler(take, head, finish), "token_classify": Pooler("every", head, finish)}
