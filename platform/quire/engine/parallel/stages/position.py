"""Where a rank is among the stages of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.loading.op_choice import op_query
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire_kernels.groups.group import RankGroup
from quire_models.sharding.model import ModelShard
from quire_models.sharding.rank import Rank
from quire_models.sharding.stage_flow import StageFlow
from quire_models.sharding.stages import Stage


@dataclass(frozen=True)
class RankPosition:
    """Rank `number` of all. width: ranks of each stage. stages: their number.

    The first ranks are those of the last stage, to which the leader belongs.
    """

    number: int
    width: int
    stages: int

    @classmethod
    def from_config(cls, config: ModelConfig, number: int) -> RankPosition:
        return cls(number, config.tensor_parallel_size, config.pipeline_parallel_size)

    @property
    def in_stage(self) -> int:
        """Its number among the ranks of its stage."""
        return self.number % self.width

    @property
    def group(self) -> range:
        """The ranks of its stage."""
        first = self.number - self.in_stage
        return range(first, first + self.width)

    @property
    def stage(self) -> Stage | None:
        """None if there is only one."""
        return None if self.stages == 1 else Stage(self.stages - 1 - self.number // self.width, self.stages)

    @property
    def source(self) -> int | None:
        """The rank of the stage before whose hidden states it gets."""
        found = self.number + self.width
        return found if found < self.width * self.stages else None

    @property
    def sink(self) -> int | None:
        """The rank of the next stage that gets its hidden states."""
        return self.number - self.width if self.number >= self.width else None

    def shard(
        self,
        config: ModelConfig,
        group: RankGroup,
        flow: StageFlow | None,
        add_up: Callable[[Tensor], Tensor],
        whole_groups: bool,
    ) -> ModelShard:
        """What the rank computes of the model."""
        rank = Rank(self.in_stage, self.width, config.enable_expert_parallel, whole_groups)
        return ModelShard(rank, group, add_up=add_up, stage=self.stage, flow=flow)


def needs_whole_groups(backend: str, registry: Registry) -> bool:
    """Whether attention may be computed by what needs all query heads of a key-value head.

    backend: the name that the user asks for, or auto.
    """
    queries = [op_query(torch.device("cpu"), dtype) for dtype in (torch.float32, torch.bfloat16)]
    return any(
        impl.name == backend or (backend == "auto" and not impl.on_request and None in map(impl.supports, queries))
        for impl in registry.by_hook("quire_ops").values()
        if impl.op == "paged_attention" and "groups" not in impl.attention_options
    )
