"""Transforms of checkpoint tensors whose order or shape is not Quire's. It imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RowOrder:
    """A transform for matrices, and their biases, whose output rows have another order in the checkpoint.

    index(decoder): int64 [outputs]; Quire's output i is the checkpoint's output index[i]. Adapters are reordered
    alike; for other functions they are refused.
    """

    index: Callable[[Any], Tensor]

    def __call__(self, tensor: Tensor, decoder: Any) -> Tensor:
        """tensor [outputs, …] in Quire's order."""
        return tensor.index_select(0, self.index(decoder).to(tensor.device))


def _by_head(decoder: Any) -> Tensor:
    import torch

    part = decoder.blocks[0].attn
    queries, size = part.heads // part.kv_heads, part.head_dim
    theirs = torch.arange((part.heads + 2 * part.kv_heads) * size).view(part.kv_heads, queries + 2, size)
    return torch.cat([theirs[:, :queries].flatten(), theirs[:, queries].flatten(), theirs[:, queries + 1].flatten()])


BY_HEAD = RowOrder(_by_head)
"""For a fused `attn.qkv` whose rows are, for each key-value head, its queries, its key and its value (GPT-NeoX,
Bloom, Falcon). Quire's order is all queries, all keys, all values.
"""


def _gates_last(decoder: Any) -> Tensor:
    import torch

    part = next(block.attn for block in decoder.blocks if getattr(getattr(block, "attn", None), "gate", False))
    theirs = torch.arange(part.heads * (part.head_dim + part.value_width)).view(part.heads, -1)
    return torch.cat((theirs[:, : part.head_dim].flatten(), theirs[:, part.head_dim :].flatten()))


GATED_QUERIES = RowOrder(_gates_last)
"""For an `attn.q` whose rows are, for each head, its queries and its output gate (Qwen3-Next). Quire's order is all
queries, then all gates.
"""


def transpose(tensor: Tensor, decoder: Any) -> Tensor:
    """For checkpoints that store a matrix as [in, out]."""
    return tensor.T


def as_matrix(kernel: Tensor, decoder: Any) -> Tensor:
    """For convolutions [outputs, …] whose kernel equals their stride: the matrix [outputs, inputs]."""
    return kernel.flatten(1)


def as_vector(tensor: Tensor, decoder: Any) -> Tensor:
    """For vectors that a checkpoint stores with further dimensions of size 1."""
    return tensor.flatten()
