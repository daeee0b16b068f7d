"""Which rank computes what: its stage of the pipeline, its part of that stage, and the node that it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig


@dataclass(frozen=True)
class Layout:
    """tensor: ranks that share a stage. pipeline: stages. nodes: machines, each with as many ranks as any other.

    Neighboring ranks share a stage. Rank 0, which samples, has the last stage; the ranks after it have the first one,
    and so on.
    """

    tensor: int
    pipeline: int
    nodes: int

    @classmethod
    def of(cls, config: ModelConfig) -> Layout:
        """That of a model. Raises ConfigError if the ranks cannot be divided among the nodes."""
        found = cls(config.tensor_parallel_size, config.pipeline_parallel_size, config.nnodes)
        if found.size % found.nodes:
            could = ", ".join(str(n) for n in range(1, found.size + 1) if found.size % n == 0)
            raise ConfigError(
                f"--nnodes {found.nodes}: the {found.size} ranks of the model cannot be divided among so many nodes; "
                f"possible numbers of nodes are {could}."
            )
        return found

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.pipeline

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.size // self.nodes

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.per_node

    def stage(self, rank: int) -> int:
        """The stage of a rank, from 0."""
        return (rank // self.tensor - 1) % self.pipeline

    def index(self, rank: int) -> int:
        """Its number among the ranks of its stage."""
        return rank % self.tensor

    def group(self, rank: int) -> range:
        """The ranks of its stage."""
        first = rank - self.index(rank)
        return range(first, first + self.tensor)

    def previous(self, rank: int) -> int | None:
        """The rank from which it gets hidden states; None = it has the first stage."""
        return None if self.stage(rank) == 0 else (rank - self.tensor) % self.size

    def following(self, rank: int) -> int | None:
        """The rank that gets its hidden states; None = it has the last stage."""
        return None if self.stage(rank) == self.pipeline - 1 else (rank + self.tensor) % self.size

    def shares_memory(self, rank: int) -> bool:
        """Whether all ranks of its stage are on one node."""
        group = self.group(rank)
        return self.node(group[0]) == self.node(group[-1])
