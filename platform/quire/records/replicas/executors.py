"""Executors: where the ranks of a model run, other than the first, which is in the engine process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class ExecutorContext:
    """What an executor is built with. size: ranks of the model, the first one included. threads: of this process, which
    the ranks on this machine share. timeout_s: how long the start may take.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    size: int
    threads: int
    timeout_s: float


@dataclass(frozen=True)
class RankProgram:
    """What a process must run to be rank `rank`. It connects to the first rank, and ends when that does.

    module, arguments: of `python -P -m module arguments…`, with the same packages and the same files of the model as
    here. environment: variables that the process should have from its start.
    """

    rank: int
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def run(self) -> int:
        """Run it in this process, which does nothing else; returns the exit status, or exits with it."""
        status: int = import_module(self.module).follow(*self.arguments)
        return status


class StartedRank(Protocol):
    """A process that runs a `RankProgram`."""

    def problem(self) -> str | None:
        """How it has ended; None while it runs, or is about to. Asked until the rank has joined the first one."""
        ...

    def end(self) -> None:
        """End it at once, also if it does not answer, and free what was reserved for it. May be called twice."""
        ...


class ExecutorImpl(Protocol):
    """Starts the ranks of one model. local: how many ranks this machine has, the first one included. address: of this
    machine, at which the other ranks reach it. Called in one thread at a time.
    """

    @property
    def local(self) -> int: ...

    @property
    def address(self) -> str: ...

    def start(self, program: RankProgram) -> StartedRank:
        """Start a process, without waiting for it. Called once for each rank but the first. Raises ConfigError."""
        ...


@dataclass(frozen=True)
class Executor:
    """A way to run the ranks of a model, chosen by `--distributed-executor-backend`.

    build: finds places for the ranks; raises ConfigError, with a sentence, if there are none.
    """

    name: str
    build: Callable[[ExecutorContext], ExecutorImpl]
