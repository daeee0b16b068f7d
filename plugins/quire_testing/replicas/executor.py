"""Conformance of executors, with small programs in place of ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from quire.records import Executor, ExecutorContext, RankProgram, StartedRank
from quire_testing.replicas import joining_program
from quire_testing.require import require

POLL_S = 0.05


def check_executor(
    record: Executor, *, options: Mapping[str, Any] | None = None, size: int = 3, timeout_s: float = 60.0
) -> None:
    """Programs start and reach this process at the executor's address, with their variables; they are ended at once,
    twice; the end of one is noticed. size: ranks, the first one included. timeout_s: of each wait.
    """
    context = ExecutorContext(options=options or {}, size=size, threads=1, timeout_s=timeout_s)
    executor = record.build(context)
    require(
        isinstance(executor.local, int) and 1 <= executor.local <= size,
        f"{record.name} says that {executor.local!r:.80} of {size} ranks are on this machine.",
    )
    with ExitStack() as closing:
        listener = closing.enter_context(socket.create_server((executor.address, 0)))
        listener.settimeout(timeout_s)
        started = {rank: executor.start(_program(listener, rank, "waits")) for rank in range(1, size)}
        joined = [closing.enter_context(listener.accept()[0]) for _ in started]
        said = sorted(each.makefile().readline().strip() for each in joined)
        require(said == [f"{rank} yes" for rank in started], f"The programs of {record.name} said {said}.")
        problems = [problem for each in started.values() if (problem := each.problem()) is not None]
        require(not problems, f"{record.name} reports an end of programs that run: {problems}.")
        for _ in range(2):
            for each in started.values():
                each.end()
        for connection in joined:
            connection.settimeout(timeout_s)
            require(_has_ended(connection), f"A program of {record.name} runs on after `end`.")
    _check_problem(record, context, timeout_s)


def _check_problem(record: Executor, context: ExecutorContext, timeout_s: float) -> None:
    executor = record.build(context)
    with socket.create_server((executor.address, 0)) as listener:
        started = [executor.start(_program(listener, rank, "ends")) for rank in range(1, context.size)]
        found = [_problem(each, timeout_s) for each in started]
    for each in started:
        each.end()
    require(all(found), f"{record.name} does not notice that a program has ended.")


def _problem(started: StartedRank, timeout_s: float) -> str | None:
    deadline = time.monotonic() + timeout_s
    while (problem := started.problem()) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return problem


def _program(listener: socket.socket, rank: int, way: str) -> RankProgram:
    host, port = listener.getsockname()[:2]
    return RankProgram(rank, joining_program.__name__, (host, str(port), str(rank), way), {joining_program.NAME: "yes"})


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
