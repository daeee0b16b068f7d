"""The two tensors of a low rank: found, checked against the config, and scaled by alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.errors import BadRequest
from quire_adapters.config import Config
from quire_adapters.modules import Module, magnitude

Ranks = Mapping[str, Mapping[str, Sequence[float]]]
"""(rank, alpha) of every target, by the path of its module and the name of its parameter there."""

MAX_CHANGE = 1e6
"""No number of a product of low ranks may be larger: weights of models are around 1, and much more overflows."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """a: float32 [rank, inputs]. b: float32 [outputs, rank], already multiplied by `factor`."""

    a: Tensor
    b: Tensor
    factor: float

    @property
    def rank(self) -> int:
        """Of the product."""
        return len(self.a)


@dataclass(frozen=True)
class Pairs:
    """Finds those of one adapter. max_rank: the largest that is allowed."""

    config: Config
    ranks: Ranks
    max_rank: int

    def of(self, module: Module, shape: tuple[int, int], kinds: tuple[str, str] = ("a", "b")) -> Pair | None:
        """That of a module whose matrix is [outputs, inputs]; None if it has none.

        Raises BadRequest if half of it is missing, or it is not what the config says or the matrix needs.
        """
        if not module.has(*kinds):
            return None
        rank, factor = self.rank_and_factor(module.path, "weight")
        why = f"by adapter_config.json (rank {rank}) and this model it should be"
        a = module.take(kinds[0], (rank, shape[1]), why)
        b = module.take(kinds[1], (shape[0], rank), why)
        b = module.finite(f"{module.path} · alpha", b * factor)
        _check_product(module.path, a, b, rank)
        return Pair(a, b, factor)

    def stacked(self, module: Module, path: str, matrix: str, shape: tuple[int, int], count: int) -> list[Pair]:
        """Those of `count` experts' matrices [outputs, inputs], one parameter: PEFT lays the ranks of all side by side.

        Gate and up together may have twice the rank, since PEFT puts the ranks of both into one.

        a: [count · rank, inputs], one after another. b: [outputs, rank · count], the first rank of each, then the next.
        """
        rank, factor = self.rank_and_factor(path, f"{matrix}_proj", self.parts(matrix))
        why = f"by adapter_config.json (rank {rank}, {count} experts) and this model it should be"
        a = module.take("a", (count * rank, shape[1]), why).view(count, rank, shape[1])
        b = module.take("b", (shape[0], rank * count), why) * factor
        b = module.finite(f"{path} · alpha", b)
        _check_product(path, a, b, rank)
        b = b.view(shape[0], rank, count).permute(2, 0, 1)
        return [Pair(a[i], b[i], factor) for i in range(count)]

    @staticmethod
    def parts(matrix: str) -> int:
        """How many matrices a stacked one is made of."""
        return 2 if matrix == "gate_up" else 1

    def rank_and_factor(self, path: str, parameter: str, times: int = 1) -> tuple[int, float]:
        """What the config says of a matrix. Raises BadRequest for a rank that is too large, or if it is no target."""
        found = self.ranks.get(path, {}).get(parameter)
        if found is None:
            raise BadRequest(
                f"The adapter has tensors for {path!r}, which adapter_config.json does not count among its targets.",
                "lora_path",
            )
        rank, alpha = int(found[0]), found[1]
        if rank > self.max_rank * times:
            raise BadRequest(
                f"The adapter has rank {rank} for {path!r}; at most {self.max_rank * times} is allowed "
                "(--max-lora-rank).",
                "lora_path",
            )
        return rank, alpha / (math.sqrt(rank) if self.config.use_rslora else rank)


def _check_product(path: str, a: Tensor, b: Tensor, rank: int) -> None:
    most = magnitude(a) * magnitude(b) * rank
    if most > MAX_CHANGE:
        raise BadRequest(
            f"The adapter changes weights of {path!r} by up to {most:.3g}, alpha included; more than {MAX_CHANGE:.0g} "
            "is beyond what a model can compute with.",
            "lora_path",
        )
