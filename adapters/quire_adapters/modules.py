"""The tensors of an adapter by the modules of the model it was trained on.

A name is a path with `base_model.model.` before it and the kind of tensor behind it:
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
"""How names end, and what that means. `weight` and `bias` are those of the module itself, trained or copied."""

_BY_OUTPUT = frozenset({"b", "b_bias", "magnitude", "weight", "bias"})
"""Kinds of a matrix that have a row for each of its outputs."""

WRAPPED = ".base_layer"
"""Ends the path of experts that have two pairs of low-rank tensors: the inner ones."""

NAMED = 5
"""How many of several names an error lists."""

_LONGEST_FIRST = sorted(KINDS, key=len, reverse=True)


@dataclass(eq=False)
class Module:
    """The tensors of one module by kind, with their names; who understands one takes it out.

    largest: no number may be larger.
    """

    path: str
    largest: float
    tensors: dict[str, tuple[str, Tensor]] = field(default_factory=dict)

    def has(self, *kinds: str) -> bool:
        """Whether there is one of them."""
        return any(kind in self.tensors for kind in kinds)

    def shape(self, kind: str) -> tuple[int, ...]:
        """Of a tensor that is needed. Raises BadRequest if it is missing."""
        if kind not in self.tensors:
            ending = next(ending for ending, meaning in KINDS.items() if meaning == kind)
            raise BadRequest(f"The adapter lacks {PREFIX + self.path + ending!r}.", "lora_path")
        return tuple(self.tensors[kind][1].shape)

    def take(self, kind: str, shape: tuple[int, ...], why: str = "this model needs") -> Tensor:
        """One that is needed, float32. Raises BadRequest if it is missing, has another shape, or is not finite."""
        found = self.shape(kind)
        name, tensor = self.tensors.pop(kind)
        if found != shape:
            raise BadRequest(f"Tensor {name!r} has shape {list(found)}; {why} {list(shape)}.", "lora_path")
        return self.finite(name, tensor.float())

    def finite(self, name: str, tensor: Tensor) -> Tensor:
        """It, if all its numbers are small enough. Raises BadRequest."""
        if not magnitude(tensor) <= self.largest:
            raise BadRequest(
                f"{name!r} has numbers that are not finite, or beyond what a model can compute with "
                f"(±{self.largest:.3g}).",
                "lora_path",
            )
        return tensor

    def reorder(self, order: Tensor) -> None:
        """Put what there is for each output into the order of `order`, int64 [outputs]; what has another number of them
        stays, for who takes it says so."""
        for kind in _BY_OUTPUT & self.tensors.keys():
            name, tensor = self.tensors[kind]
            if tensor.dim() and len(tensor) == len(order):
                self.tensors[kind] = name, tensor[order]

    def finish(self) -> None:
        """Raises BadRequest for what nobody took."""
        left = [name for name, _ in self.tensors.values()]
        if left:
            raise BadRequest(f"The adapter has tensors without a meaning there: {listed(left)}.", "lora_path")


def split(name: str) -> tuple[str, str]:
    """The path of a tensor's module and one of `KINDS`; "" for both if the name means nothing."""
    ending = next((ending for ending in _LONGEST_FIRST if name.endswith(ending)), "")
    return (name.removeprefix(PREFIX).removesuffix(ending) if ending else ""), ending


def bare(path: str) -> str:
    """The path of the experts themselves, where PEFT has wrapped them."""
    while path.endswith(WRAPPED):
        path = path.removesuffix(WRAPPED)
    return path


def modules_of(tensors: Mapping[str, Tensor], largest: float) -> list[Module]:
    """Every module that has tensors. Raises BadRequest for names that mean nothing, or the same."""
    found: dict[str, Module] = {}
    unknown = []
    for name, tensor in tensors.items():
        path, ending = split(name)
        if not ending:
            unknown.append(name)
            continue
        module = found.setdefault(path, Module(path, largest))
        if KINDS[ending] in module.tensors:
            raise BadRequest(f"The adapter has both {name!r} and {module.tensors[KINDS[ending]][0]!r}.", "lora_path")
        module.tensors[KINDS[ending]] = name, tensor
    if unknown:
        raise BadRequest(f"The adapter has tensors of no known kind: {listed(unknown)}.", "lora_path")
    return list(found.values())


def magnitude(tensor: Tensor) -> float:
    """The largest of its numbers without their signs; no number if one is none. On the CPU."""
    numbers = tensor.numpy()  # for its loops are those of one thread
    return max(float(numbers.max()), -float(numbers.min())) if numbers.size else 0.0


def listed(names: list[str]) -> str:
    """The first few of them, for an error."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more
