"""One model loaded by several ranks, which are threads here, and by one."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from family_checks import plugins
from torch import Tensor

from quire.engine.loading.load import LoadedModel, load_model
from quire.settings.model_config import ModelConfig
from quire_kernels.cpu.implementations import compiled
from quire_kernels.groups.group import OneMember
from quire_kernels.groups.shared_memory import SharedMemoryGroup, shared_bytes
from quire_kernels.groups.sockets import SocketGroup
from quire_kernels.groups.stage_link import StageLink
from quire_models.sharding.model import WHOLE_MODEL, ModelShard
from quire_models.sharding.rank import Rank
from quire_models.sharding.stage_flow import StageFlow
from quire_models.sharding.stages import Stage
from quire_models.testing import ChunkSpec, run_tokens

FIRST_CHUNK = 7
"""Tokens of each seq in the first of two steps."""


def groups(size: int, timeout_s: float = 20.0, threads: int = 1) -> list[SharedMemoryGroup]:
    """The members of a group, all in this process."""
    library = compiled()
    memory = mmap.mmap(-1, shared_bytes(library, size, threads))
    return [SharedMemoryGroup(library, memory, rank, size, threads, timeout_s) for rank in range(size)]


def socket_groups(size: int, timeout_s: float = 20.0) -> list[SocketGroup]:
    """The members of a group that are connected by sockets, all in this process."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one, other in combinations(range(size), 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    return [SocketGroup(compiled(), ends[rank], rank, size, timeout_s) for rank in range(size)]


def on_ranks(work: Callable[[int], Any], size: int) -> list[Any]:
    """What `work` returns for each rank, in threads of their own; raises what the first failing one raises."""
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            found[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def load(folder: Path, shard: Any = WHOLE_MODEL, **settings: Any) -> LoadedModel:
    config = {"dtype": "float32", "device": "cpu", "max_model_len": 80, **settings}
    return load_model(ModelConfig(model=str(folder), **config), plugins(), shard=shard)


def logits(loaded: LoadedModel, seqs: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of every token of each seq, in two steps."""
    first = [[ChunkSpec(i, min(FIRST_CHUNK, len(seq))) for i, seq in enumerate(seqs)]]
    with torch.inference_mode():
        return run_tokens(loaded.module, loaded.decoder, seqs, first)


def divided(
    folder: Path, size: int, seqs: Sequence[Sequence[int]], by_expert: bool = False, **settings: Any
) -> tuple[list[Tensor], list[LoadedModel]]:
    """The logits that `size` ranks compute, and what each of them has loaded."""
    members = groups(size)

    def work(rank: int) -> tuple[list[Tensor], LoadedModel]:
        try:
            loaded = load(
                folder, ModelShard(Rank(rank, size, by_expert, whole_groups=False), members[rank]), **settings
            )
            return logits(loaded, seqs), loaded
        except BaseException:
            members[rank].fail()  # the others would wait for this one
            raise

    found = on_ranks(work, size)
    return found[0][0], [loaded for _, loaded in found]


def flows(stages: int) -> list[StageFlow]:
    """What leads from each stage to the next, all in this process."""
    pairs = [tuple(map(StageLink, socket.socketpair())) for _ in range(stages - 1)]
    return [
        StageFlow(None if i == 0 else pairs[i - 1][1], None if i == stages - 1 else pairs[i][0]) for i in range(stages)
    ]


def staged(folder: Path, stages: int, seqs: Sequence[Sequence[int]], **settings: Any) -> tuple[list[Tensor], list[Any]]:
    """The logits that `stages` stages compute, and what each of them has loaded."""
    links = flows(stages)

    def work(index: int) -> tuple[list[Tensor], LoadedModel]:
        try:
            shard = ModelShard(Rank(0, 1), OneMember(), stage=Stage(index, stages), flow=links[index])
            loaded = load(folder, shard, **settings)
            if index < stages - 1:
                loaded.module.logits = lambda hidden: hidden[:, :1]
            return logits(loaded, seqs), loaded
        except BaseException:
            links[index].close()  # the others would wait for this one
            raise

    found = on_ranks(work, stages)
    return found[-1][0], [loaded for _, loaded in found]
