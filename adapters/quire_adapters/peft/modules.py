"""Groups the tensors of an adapter by the modules of the model that it was trained on.

A tensor's name is `base_model.model.`, the path of the module, and the kind of tensor:
base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.errors import BadRequest

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "base_model.model."
KINDS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "b_bias",
    ".lora_embedding_A": "table_a",
    ".lora_embedding_B": "table_b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".base_layer.weight": "weight",
    ".base_layer.bias": "bias",
    ".weight": "weight",
    ".bias": "bias",
}
"""Kind of tensor by the ending of its name. `weight` and `bias` are the module's own, trained or copied."""

_BY_OUTPUT = frozenset({"b", "b_bias", "magnitude", "weight", "bias"})
"""Kinds of tensors that have a row for each output of the matrix."""

WRAPPED = ".base_layer"
"""Ending of the path of experts that PEFT has wrapped twice, for the inner pair of low-rank tensors."""

MAX_LISTED = 5
"""Names that an error lists at most."""

_BY_LENGTH = sorted(KINDS, key=len, reverse=True)


@dataclass(eq=False)
class AdapterModule:
    """The tensors of one module by kind, with their names. Loading takes them out; `check_consumed` finds leftovers.

    largest: largest number that a tensor may contain.
    """

    path: str
    largest: float
    tensors: dict[str, tuple[str, Tensor]] = field(default_factory=dict)

    def has(self, *kinds: str) -> bool:
        """Whether there is a tensor of one of these kinds."""
        return any(kind in self.tensors for kind in kinds)

    def shape(self, kind: str) -> tuple[int, ...]:
        """The shape of a required tensor. Raises BadRequest if it is missing."""
        if kind not in self.tensors:
            ending = next(ending for ending, meaning in KINDS.items() if meaning == kind)
            raise BadRequest(f"The adapter lacks {PREFIX + self.path + ending!r}.", "lora_path")
        return tuple(self.tensors[kind][1].shape)

    def take(self, kind: str, shape: tuple[int, ...], why: str = "this model needs") -> Tensor:
        """Take out a required tensor, as float32. Raises BadRequest if it is missing, has another shape, or contains
        numbers that are too large.
        """
        found = self.shape(kind)
        name, tensor = self.tensors.pop(kind)
        if found != shape:
            raise BadRequest(f"Tensor {name!r} has shape {list(found)}; {why} {list(shape)}.", "lora_path")
        return self.check_finite(name, tensor.float())

    def check_finite(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor. Raises BadRequest if its numbers are not finite or too large."""
        if not magnitude(tensor) <= self.largest:
            raise BadRequest(
                f"{name!r} has numbers that are not finite, or beyond what a model can compute with "
                f"(±{self.largest:.3g}).",
                "lora_path",
            )
        return tensor

    def reorder(self, order: Tensor) -> None:
        """Reorder the rows of tensors that have one for each output. order: int64 [outputs].

        Tensors with another number of rows stay as they are; `take` rejects them.
        """
        for kind in _BY_OUTPUT & self.tensors.keys():
            name, tensor = self.tensors[kind]
            if tensor.dim() and len(tensor) == len(order):
                self.tensors[kind] = name, tensor[order]

    def check_consumed(self) -> None:
        """Raises BadRequest if tensors are left that were not taken."""
        unused = [name for name, _ in self.tensors.values()]
        if unused:
            raise BadRequest(f"The adapter has tensors without a meaning there: {listed(unused)}.", "lora_path")


def split_name(name: str) -> tuple[str, str]:
    """The path of a tensor's module, and the ending in `KINDS`; "" for both if the ending is unknown."""
    ending = next((ending for ending in _BY_LENGTH if name.endswith(ending)), "")
    return (name.removeprefix(PREFIX).removesuffix(ending) if ending else ""), ending


def unwrap_path(path: str) -> str:
    """The path of a module without PEFT's wrappers."""
    while path.endswith(WRAPPED):
        path = path.removesuffix(WRAPPED)
    return path


def group_by_module(tensors: Mapping[str, Tensor], largest: float) -> list[AdapterModule]:
    """Every module that has tensors. Raises BadRequest for names that are unknown or mean the same tensor."""
    found: dict[str, AdapterModule] = {}
    unknown = []
    for name, tensor in tensors.items():
        path, ending = split_name(name)
        if not ending:
            unknown.append(name)
            continue
        module = found.setdefault(path, AdapterModule(path, largest))
        if KINDS[ending] in module.tensors:
            raise BadRequest(f"The adapter has both {name!r} and {module.tensors[KINDS[ending]][0]!r}.", "lora_path")
        module.tensors[KINDS[ending]] = name, tensor
    if unknown:
        raise BadRequest(f"The adapter has tensors of no known kind: {listed(unknown)}.", "lora_path")
    return list(found.values())


def magnitude(tensor: Tensor) -> float:
    """The largest absolute value of a CPU tensor; NaN if it contains one."""
    numbers = tensor.numpy()  # because numpy uses a single thread
    return max(float(numbers.max()), -float(numbers.min())) if numbers.size else 0.0


def listed(names: list[str]) -> str:
    """The first names, for an error."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(repr, names[:MAX_LISTED])) + more
