"""What ranks of one machine are connected by: memory that those of a stage share, and sockets between stages."""

from __future__ import annotations

import mmap
import os
import socket
from dataclasses import dataclass
from types import TracebackType

from quire.engine.parallel.group import group_memory, rank_group
from quire.engine.parallel.stages.position import RankPosition
from quire_kernels.groups.group import OneMember
from quire_kernels.groups.shared_memory import SharedMemoryGroup
from quire_kernels.groups.stage_link import StageLink
from quire_models.sharding.stage_flow import StageFlow

Group = SharedMemoryGroup | OneMember


@dataclass(frozen=True)
class Wires:
    """Descriptors of one rank, None for what it does not have. memory: of its group. source, sink: sockets."""

    memory: int | None
    source: int | None
    sink: int | None

    @property
    def descriptors(self) -> list[int]:
        return [each for each in (self.memory, self.source, self.sink) if each is not None]

    def copies(self) -> Wires:
        """Descriptors of the same files, which are closed apart from these."""
        return Wires(*(None if each is None else os.dup(each) for each in (self.memory, self.source, self.sink)))

    def group(self, position: RankPosition, threads: int) -> Group:
        """The rank's end of its group. threads: of each rank."""
        if self.memory is None:
            return OneMember()
        memory = mmap.mmap(self.memory, os.fstat(self.memory).st_size)
        os.close(self.memory)
        return rank_group(memory, position.in_stage, position.width, threads)

    def flow(self) -> StageFlow | None:
        """The rank's ends of what leads from stage to stage, which own the descriptors; None with one stage."""
        ends = [None if each is None else StageLink(socket.socket(fileno=each)) for each in (self.source, self.sink)]
        return StageFlow(*ends) if any(ends) else None


class Wiring:
    """The wires of all ranks; the descriptors are closed at the end of the context."""

    def __init__(self, width: int, stages: int, threads: int) -> None:
        self._own: list[int] = []
        positions = [RankPosition(number, width, stages) for number in range(width * stages)]
        memories: dict[int, int] = {}
        ends: dict[tuple[int, int], int] = {}
        try:
            for position in positions:
                first, sink = position.group.start, position.sink
                if width > 1 and first not in memories:
                    memories[first], memory = group_memory(width, threads)
                    memory.close()
                    self._own.append(memories[first])
                if sink is not None:
                    pair = [each.detach() for each in socket.socketpair()]
                    ends[position.number, sink], ends[sink, position.number] = pair
                    self._own += pair
        except BaseException:
            self._close()
            raise
        self._wires = [
            Wires(
                memories.get(each.group.start),
                ends[each.number, each.source] if each.source is not None else None,
                ends[each.number, each.sink] if each.sink is not None else None,
            )
            for each in positions
        ]

    def __getitem__(self, rank: int) -> Wires:
        return self._wires[rank]

    def __enter__(self) -> Wiring:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        for descriptor in self._own:
            os.close(descriptor)
