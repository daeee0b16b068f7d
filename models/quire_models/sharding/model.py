"""Divides one model: the parts of a rank, the cuts of its parameters, and the sums over the ranks in its modules."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_kernels.groups.group import RankGroup
from quire_models.loading.weight_names import WeightsMapper
from quire_models.loading.weights import converted, randomize
from quire_models.modules.blocks import DecoderModel
from quire_models.sharding.cuts import WHOLE, Cut, cut
from quire_models.sharding.files import CutFiles, names_here, own_names_table
from quire_models.sharding.modules import as_indices, cut_of, module_cuts, sums_inside
from quire_models.sharding.parts import rank_of_model, shard_model
from quire_models.sharding.rank import Rank
from quire_models.sharding.stage_flow import ModelStage, StageFlow
from quire_models.sharding.stages import Stage
from quire_models.sharding.vocabulary import VocabularyShare

if TYPE_CHECKING:
    from quire_models.loading.quantized_files import WeightFiles
    from quire_models.model_part import ModelPart


@dataclass(frozen=True, eq=False)
class AttachedShard:
    """What the modules of a rank know: the whole model, without data, and what the rank has of each parameter of it.

    own: paths of the modules that the rank has. add_up: returns the sum over the ranks of what they ask for at the same
    point while they read the same adapter; only for threads that do.
    """

    rank: Rank
    whole: nn.Module
    cuts: Mapping[str, Cut]
    add_up: Callable[[Tensor], Tensor]
    own: frozenset[str]

    def has(self, path: str) -> bool:
        """Whether the rank has a module of the whole model, or a part of it."""
        return path in self.own

    def cut(self, parameter: str) -> Cut:
        """The cut of a parameter."""
        return self.cuts.get(parameter, WHOLE)

    def files(
        self, files: WeightFiles, names: WeightsMapper, decoder: ModelPart, own: nn.Module
    ) -> tuple[WeightFiles, WeightsMapper]:
        """The weights of the rank, and the table of their names. decoder: of the whole model. own: the rank's."""
        return CutFiles(converted(names, files), names, decoder, self.whole, own, self.cuts), own_names_table(names)

    def randomize(self, own: nn.Module) -> None:
        """Random weights: the rank's part of those that the whole model would have."""
        here = names_here(self.whole, dict(own.named_parameters()))
        sizes = {here.get(name, name): parameter.shape for name, parameter in self.whole.named_parameters()}

        def own_part(name: str, drawn: Tensor) -> Tensor:
            made = self.cut(name)
            part: Tensor = cut(drawn, [made.indices.get(dim, slice(None)) for dim in range(drawn.dim())])
            return part if made.adds else torch.zeros_like(part)

        randomize(own, sizes=sizes, change=own_part)


class WholeModel:
    """What `ModelShard` is for a model with one rank: nothing is divided."""

    def parts(self, decoder: Any) -> Any:
        return decoder

    def attach(self, whole: Any, own: Any) -> WholeModel:
        return self

    def files(
        self, files: WeightFiles, names: WeightsMapper, decoder: ModelPart, own: nn.Module
    ) -> tuple[WeightFiles, WeightsMapper]:
        return files, names

    def randomize(self, own: nn.Module) -> None:
        randomize(own)


WHOLE_MODEL = WholeModel()


def _no_sums(values: Tensor) -> Tensor:
    raise RuntimeError("these ranks cannot add up what adapters need")


@dataclass(frozen=True, eq=False)
class ModelShard:
    """What one rank computes of a model. rank, group: among those of its stage. to_all: all ranks sample, so all need
    the logits. add_up: see `AttachedShard`; without it adapters that need sums over the ranks cannot be read. stage,
    flow: None = the model has one stage.
    """

    rank: Rank
    group: RankGroup
    to_all: bool = False
    add_up: Callable[[Tensor], Tensor] = _no_sums
    stage: Stage | None = None
    flow: StageFlow | None = None

    def parts(self, decoder: Any) -> Any:
        """The rank's parts of a decoder. Raises ConfigError if it cannot be divided among so many ranks."""
        own = decoder if self.rank.size == 1 else shard_model(decoder, self.rank)
        return own if self.stage is None else self.stage.part(decoder, own)

    def attach(self, whole: Any, own: Any) -> AttachedShard:
        """Let the modules of the rank add up what the ranks have computed, and give what they have computed to the next
        stage. whole: the modules of the whole model.
        """
        held = frozenset(path for path, _ in own.named_modules())
        cuts: dict[str, Cut] = {}
        rank = self.rank
        if rank.size > 1:
            rank = rank_of_model(whole.part, rank)
            cuts = self._add_up(whole, own, held, rank) | self._vocabulary(whole, own)
            own.register_forward_pre_hook(lambda *_: self.group.begin())
            own.register_forward_hook(lambda *_: self.group.check())
        if self.stage is not None and self.flow is not None:
            own.stage = ModelStage(self.flow, self.stage, whole.part, self.group.check)
        own.shard = AttachedShard(rank, whole, cuts, self.add_up, held)
        return own.shard

    def _add_up(self, whole: Any, own: Any, held: Container[str], rank: Rank) -> dict[str, Cut]:
        """Let the modules add up their outputs; returns their cuts. held: paths of modules that the rank has."""
        cuts: dict[str, Cut] = {}
        partial: set[str] = set()
        mixtures: list[tuple[str, Any]] = []
        for path, module in whole.named_modules():
            if path not in held:
                continue
            found = module_cuts(module, getattr(own.get_submodule(path), "part", None), rank)
            if found is None:
                continue
            for name, parameter in module.named_parameters():
                made = cut_of(name, parameter.dim(), found, rank)
                if made.indices or not made.adds:
                    cuts[_joined(path, name)] = made
            partial.update(_joined(path, name) for name in found.partial)
            for name, total in found.norms.items():
                norm = own.get_submodule(_joined(path, name))
                norm.total, norm.reduce = total, self.group.all_reduce
            if "" in found.partial:
                mixtures.append((path, own.get_submodule(path)))
        for path, mixture in mixtures:
            inside = {_joined(path, name) for name in sums_inside(mixture)} & partial
            mixture.shared_is_partial = bool(inside)
            partial -= inside
        for path in partial:
            own.get_submodule(path).reduce = self.group.all_reduce
        return cuts

    def _vocabulary(self, whole: Any, own: Any) -> dict[str, Cut]:
        """Divide the embedding table and the LM head of a decoder."""
        if not isinstance(whole, DecoderModel):
            return {}
        count = whole.part.vocab
        shares = [Rank(i, self.rank.size).columns(count, "tokens") for i in range(self.rank.size)]
        held = shares[self.rank.index]
        own.vocabulary = VocabularyShare(held, tuple(map(len, shares)), self.group, self.to_all)
        kept = Cut({0: as_indices(held)})
        return dict.fromkeys(("embed.weight", "head.weight", "head.bias"), kept)


def _joined(path: str, name: str) -> str:
    return ".".join(filter(None, (path, name)))
