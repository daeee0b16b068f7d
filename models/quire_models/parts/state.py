"""What blocks keep for each seq: keys and values per token, state of fixed size, both, or nothing.

Recurrent blocks (gated delta nets, Mamba-2) keep a matrix for each head as state, convolutions their last inputs. The
engine gives every running seq one slot of `quire_models.step.state_cache.StateCache` and clears and copies slots
between steps; a block finds its tensors in `ForwardBatch.state` and the slot of each row in `ForwardBatch.state_slots`.

A block states what it keeps by its attributes `kv_shape` and `state_shape`; for a block without them, those of its
`attn` count. Both attributes are optional everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple


class KvShape(NamedTuple):
    """Shape of the keys, and of the values, that one block stores per token.

    head_dim: of the keys. value_dim: of the values, None = head_dim; 0: no values are stored, because they are part of
    the keys (latent attention). A block that stores nothing has KvShape(0, 0).
    """

    kv_heads: int
    head_dim: int
    value_dim: int | None = None

    @property
    def value_width(self) -> int:
        """Elements of a stored value."""
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a block's state. shape: for one seq. float32: kept in float32, else in the model's data type."""

    shape: tuple[int, ...]
    float32: bool = False


@dataclass(frozen=True)
class StateShape:
    """The tensors that a block keeps for each seq; all are zeros at the beginning of a seq."""

    tensors: tuple[StateTensor, ...]


def kv_shape(block: Any) -> KvShape:
    """What a block, or a part of one, stores per token."""
    found: KvShape | None = _stated(block, "kv_shape")
    return KvShape(0, 0) if found is None else found


def state_shape(block: Any) -> StateShape | None:
    """The state that a block, or a part of one, keeps for each seq."""
    found: StateShape | None = _stated(block, "state_shape")
    return found


def _stated(block: Any, name: str) -> Any:
    found = getattr(block, name, None)
    return getattr(getattr(block, "attn", None), name, None) if found is None else found


def parts_of(block: Any) -> Iterator[Any]:
    """The block and all parts within it, at any depth: its `attn` and `mlp`, and what fields of dataclasses hold."""
    yield block
    branches = [part for name in ("attn", "mlp") if (part := getattr(block, name, None)) is not None]
    for held in [getattr(block, each.name) for each in fields(block)] if is_dataclass(block) else []:
        branches += [one for one in (held if isinstance(held, tuple) else (held,)) if hasattr(one, "build")]
    for part in {id(part): part for part in branches}.values():
        yield from parts_of(part)
