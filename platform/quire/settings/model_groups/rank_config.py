"""The settings that divide a model among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import ConfigError
from quire.settings.setting import check_positive, setting

if TYPE_CHECKING:
    from quire.records import Executor, Registry

EXECUTORS = "quire_executors"
OWN_EXECUTORS = ("uni", "mp", "external_launcher")
"""Values of --distributed-executor-backend that need no plugin."""

MAX_RANKS = 64
"""Largest number of ranks of a model."""


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """Base of `ModelConfig`: how many ranks a model has, and where they run."""

    tensor_parallel_size: int = setting(
        "Number of ranks, processes that each compute a part of the model (see docs/scale).",
        1,
        also=("tp",),
    )
    pipeline_parallel_size: int = setting(
        "Number of stages, neighboring blocks of the model that are computed one after the other, each by "
        "--tensor-parallel-size ranks of its own (see docs/scale).",
        1,
        also=("pp",),
    )
    enable_expert_parallel: bool = setting(
        "Give each rank of --tensor-parallel-size some experts of a mixture, instead of some columns of all experts.",
        False,
    )
    distributed_executor_backend: str | None = setting(
        "How the ranks of a model run: uni (one rank, in the process of the engine), mp (a process for each further "
        "rank), external_launcher (torchrun starts this command for each rank), ray (actors of a Ray cluster), or an "
        "executor of a plugin; default: uni with one rank, else mp.",
    )
    nnodes: int = setting("Number of machines that share the ranks of the model; each runs this command.", 1)
    node_rank: int = setting("Number of this machine, from 0 to --nnodes - 1; the first one serves.", 0)
    master_addr: str = setting("Address of the first of --nnodes machines.", "127.0.0.1")
    master_port: int = setting("Port on which the first of --nnodes machines awaits the others.", 29501)
    distributed_timeout_s: float = setting(
        "Maximum time in seconds that ranks on several machines wait for each other at the start.",
        300.0,
        also=("distributed_timeout_seconds",),
    )

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_setting(self) -> str:
        """What gives the model so many ranks, for messages."""
        tensor, stages = self.tensor_parallel_size, self.pipeline_parallel_size
        if stages == 1:
            return f"--tensor-parallel-size {tensor}"
        own = f"--pipeline-parallel-size {stages}"
        return own if tensor == 1 else f"--tensor-parallel-size {tensor} with {own}"

    def executor_record(self, registry: Registry) -> Executor | None:
        """The executor of a plugin; None: one of Quire's own. Raises ConfigError if there is none of that name."""
        name = self.distributed_executor_backend
        if name is None or name in OWN_EXECUTORS:
            return None
        records = registry.by_hook(EXECUTORS)
        if name not in records:
            known = ", ".join((*OWN_EXECUTORS, *records))
            raise ConfigError(f"--distributed-executor-backend must be one of {known}; got {name!r:.80}.")
        found: Executor = records[name]
        return found

    def _check_ranks(self) -> None:
        """Raise ConfigError for settings that no ranks can have."""
        check_positive(self, "tensor_parallel_size", "pipeline_parallel_size")
        size = self.num_ranks
        if size > MAX_RANKS:
            raise ConfigError(f"A model may have at most {MAX_RANKS} ranks; {self.ranks_setting} gives it {size}.")
        if self.distributed_executor_backend == "uni" and size > 1:
            raise ConfigError(f"--distributed-executor-backend uni has one rank, but {self.ranks_setting}; use mp.")
        self._check_nodes(size)

    def _check_nodes(self, size: int) -> None:
        check_positive(self, "nnodes", "distributed_timeout_s")
        nodes = self.nnodes
        if not 0 <= self.node_rank < nodes:
            raise ConfigError(
                f"--node-rank must be from 0 to {nodes - 1}, as --nnodes is {nodes}; got {self.node_rank}."
            )
        if not 0 < self.master_port < 65536:
            raise ConfigError(f"--master-port must be from 1 to 65535; got {self.master_port}.")
        backend = self.distributed_executor_backend
        if nodes > 1 and backend == "external_launcher":
            raise ConfigError(
                "--nnodes and --distributed-executor-backend external_launcher: give --nnodes to torchrun."
            )
        if nodes > 1 and backend not in (None, *OWN_EXECUTORS):
            raise ConfigError(
                f"--nnodes {nodes} and --distributed-executor-backend {backend}: run one command, without --nnodes; "
                "the executor finds machines itself."
            )
        if size % nodes:
            raise ConfigError(
                f"{self.ranks_setting}: the {size} ranks must be a multiple of --nnodes {nodes}, because each machine "
                "has as many."
            )
