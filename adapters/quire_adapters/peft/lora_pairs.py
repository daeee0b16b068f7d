"""Pairs of low-rank tensors (LoRA A and B): found, checked against the config, and scaled by alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.errors import BadRequest
from quire_adapters.peft.config import PeftConfig
from quire_adapters.peft.modules import AdapterModule, magnitude

Ranks = Mapping[str, Mapping[str, Sequence[float]]]
"""(rank, alpha) of every target, by the path of its module and the name of the parameter."""

MAX_CHANGE = 1e6
"""Largest number that a product of low ranks may contain. Weights are around 1; far larger ones overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraPair:
    """The update b a of a matrix. a: float32 [rank, inputs]. b: float32 [outputs, rank], multiplied by `factor`."""

    a: Tensor
    b: Tensor
    factor: float

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class LoraPairs:
    """Finds the pairs of one adapter. max_rank: largest rank that is allowed."""

    config: PeftConfig
    ranks: Ranks
    max_rank: int

    def take(
        self, module: AdapterModule, shape: tuple[int, int], kinds: tuple[str, str] = ("a", "b")
    ) -> LoraPair | None:
        """The pair of a module whose matrix is [outputs, inputs]; None if it has none.

        Raises BadRequest if one of the two is missing, or they contradict the config or the matrix.
        """
        if not module.has(*kinds):
            return None
        rank, factor = self._rank_and_factor(module.path, "weight")
        why = f"by adapter_config.json (rank {rank}) and this model it should be"
        a = module.take(kinds[0], (rank, shape[1]), why)
        b = module.take(kinds[1], (shape[0], rank), why)
        b = module.check_finite(f"{module.path} · alpha", b * factor)
        _check_product(module.path, a, b, rank)
        return LoraPair(a, b, factor)

    def take_stacked(
        self, module: AdapterModule, path: str, matrix: str, shape: tuple[int, int], count: int
    ) -> list[LoraPair]:
        """The pairs of `count` experts, whose matrices [outputs, inputs] PEFT changes as one stacked parameter.

        Its layout is a: [count · rank, inputs], by expert and rank; b: [outputs, rank · count], by rank and expert.
        Gate and up together may have twice the rank, since PEFT adds the ranks of both.
        """
        rank, factor = self._rank_and_factor(path, f"{matrix}_proj", self.parts(matrix))
        why = f"by adapter_config.json (rank {rank}, {count} experts) and this model it should be"
        a = module.take("a", (count * rank, shape[1]), why).view(count, rank, shape[1])
        b = module.take("b", (shape[0], rank * count), why) * factor
        b = module.check_finite(f"{path} · alpha", b)
        _check_product(path, a, b, rank)
        b = b.view(shape[0], rank, count).permute(2, 0, 1)
        return [LoraPair(a[i], b[i], factor) for i in range(count)]

    @staticmethod
    def parts(matrix: str) -> int:
        """Number of matrices that a stacked one consists of."""
        return 2 if matrix == "gate_up" else 1

    def _rank_and_factor(self, path: str, parameter: str, times: int = 1) -> tuple[int, float]:
        """Rank and scaling by the config. Raises BadRequest if the rank is too large or the matrix is no target."""
        found = self.ranks.get(path, {}).get(parameter)
        if found is None:
            raise BadRequest(
                f"The adapter has tensors for {path!r}, which adapter_config.json does not list as a target.",
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
    bound = magnitude(a) * magnitude(b) * rank
    if bound > MAX_CHANGE:
        raise BadRequest(
            f"The adapter changes weights of {path!r} by up to {bound:.3g}, alpha included; more than {MAX_CHANGE:.0g} "
            "is beyond what a model can compute with.",
            "lora_path",
        )
