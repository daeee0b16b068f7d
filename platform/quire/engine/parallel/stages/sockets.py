"""What ranks of several machines are connected by: a socket between every two of them."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from quire.engine.parallel.group import socket_group
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.wires import Group
from quire_kernels.groups.group import OneMember
from quire_kernels.groups.stage_link import StageLink
from quire_models.sharding.stage_flow import StageFlow


def group_of(position: RankPosition, connections: Mapping[int, socket.socket]) -> Group:
    """The rank's end of its group. connections: to each other rank."""
    if position.width == 1:
        return OneMember()
    others = {rank - position.group.start: connections[rank] for rank in position.group if rank != position.number}
    return socket_group(others, position.in_stage, position.width)


def flow_of(position: RankPosition, connections: Mapping[int, socket.socket]) -> StageFlow | None:
    """The rank's ends of what leads from stage to stage; None with one stage."""
    if position.stages == 1:
        return None
    ends = [None if rank is None else StageLink(connections[rank]) for rank in (position.source, position.sink)]
    return StageFlow(*ends)
