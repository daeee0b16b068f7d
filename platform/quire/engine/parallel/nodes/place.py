"""Which ranks of a model a command starts, and where it finds the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells the processes that it starts."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """host, port: where the first rank listens, or torchrun's store if `by_store`. size: ranks of the model.

    first, count: the ranks that the command starts. local: how many ranks this machine has. timeout_s: of the start.
    """

    host: str
    port: int
    size: int
    first: int
    count: int
    local: int
    by_store: bool
    timeout_s: float

    @property
    def leads(self) -> bool:
        """Whether the command has the first rank, which serves."""
        return self.first == 0


def place_of(config: ModelConfig, environ: Mapping[str, str]) -> Place | None:
    """None: all ranks are processes of this machine that the first one starts. Raises ConfigError."""
    size = config.num_ranks
    if config.distributed_executor_backend == "external_launcher":
        return _place_of_torchrun(config, environ)
    if config.nnodes == 1:
        return None
    count = size // config.nnodes
    return Place(
        host=config.master_addr,
        port=config.master_port,
        size=size,
        first=config.node_rank * count,
        count=count,
        local=count,
        by_store=False,
        timeout_s=config.distributed_timeout_s,
    )


def check_place(models: Sequence[ModelConfig], num_replicas: int, environ: Mapping[str, str]) -> Place | None:
    """The place of the models that a server begins with. Raises ConfigError if they cannot be on several machines."""
    places = [place_of(model, environ) for model in models]
    if all(place is None for place in places):
        return None
    if len(models) > 1:
        raise ConfigError(f"--nnodes and torchrun are for one model; there are {len(models)}.")
    if num_replicas > 1:
        raise ConfigError(f"--nnodes and torchrun are for one engine process; --data-parallel-size is {num_replicas}.")
    return places[0]


def _place_of_torchrun(config: ModelConfig, environ: Mapping[str, str]) -> Place:
    size = config.num_ranks
    missing = [name for name in VARIABLES if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"--distributed-executor-backend external_launcher needs the variables {', '.join(VARIABLES)}, which "
            f"torchrun sets; there is no {', '.join(missing)}."
        )
    try:
        numbers = [int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
        local = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError as error:
        raise ConfigError(f"A variable of torchrun is no number: {error}.") from error
    rank, started, port = numbers
    if started != size:
        raise ConfigError(
            f"torchrun has started {started} processes (WORLD_SIZE), but {config.ranks_setting} makes {size} ranks; "
            "the numbers must be equal."
        )
    by_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(
        host=environ["MASTER_ADDR"],
        port=port,
        size=size,
        first=rank,
        count=1,
        local=local,
        by_store=by_store,
        timeout_s=config.distributed_timeout_s,
    )
