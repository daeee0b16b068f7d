"""The process that `quire.isolated_calls` asks: it calls functions that read files of others.

A question names a function and its arguments; the answer is what it gave, or its error. It may be killed at any time,
also by the system, which takes it first when memory is short.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from quire.child_process import LENGTH, frame
from quire.errors import QuireError
from quire.idle_thread import run_when_idle
from quire.isolation import Shared

LINGER_S = 5.0
"""Time that the asking process has to end this one; then it ends itself, for the other may be gone."""


@dataclass(frozen=True)
class Question:
    """function: module:name. memory_bytes: what it may take beside what the process has. timeout_s: its time."""

    function: str
    args: list[Any]
    memory_bytes: int
    timeout_s: float


@dataclass(frozen=True)
class Answer:
    """value: what the function gave. error: what it raised instead, as `QuireError.told`. excess: or of what it needed
    too much. fault: or any other error.
    """

    value: Any = None
    error: tuple[str, ...] | None = None
    excess: str | None = None
    fault: str | None = None


def packed(message: Question | Answer) -> bytes:
    """A message as JSON. Raises TypeError, ValueError for one that holds more than plain data."""
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def function_of(name: str) -> Callable[..., Any]:
    """The function that is called module:name."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def name_of(function: Callable[..., Any]) -> str:
    """The other way round."""
    return f"{function.__module__}:{function.__qualname__}"


def _bound(question: Question) -> None:
    """Bounds of memory beside what there is now, and of processor time."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + question.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        wanted = int(time.process_time() + question.timeout_s) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard < 0 else min(wanted, hard), hard))


def _answer(question: Question) -> tuple[Answer, Shared | None]:
    try:
        function = function_of(question.function)
        _bound(question)
        found = function(*question.args)
    except QuireError as error:
        return Answer(error=error.told), None
    except MemoryError:
        return Answer(excess="needs too much memory"), None
    except RecursionError:
        return Answer(excess="is nested too deeply"), None
    except Exception as error:
        return Answer(fault=f"{type(error).__name__}: {error}"[:500]), None
    shared = found if isinstance(found, Shared) else None
    return Answer(value=found if shared is None else shared.value), shared


def _serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        question = Question(**json.loads(stream.read(LENGTH.unpack(head)[0])))
        faulthandler.dump_traceback_later(question.timeout_s + LINGER_S, exit=True, file=sys.stderr)
        answer, shared = _answer(question)
        body = frame(packed(answer))
        if shared is None:
            connection.sendall(body)
        else:
            socket.send_fds(connection, [body[: LENGTH.size]], [shared.memory.fileno()])
            connection.sendall(body[LENGTH.size :])
            shared.memory.close()
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Answer until the asking process closes the connection. Arguments: --idle, functions that will be asked for."""
    sys.stdout = sys.stderr  # what libraries print is no answer
    connection = socket.socket(fileno=0)
    names = sys.argv[1:]
    if names[:1] == ["--idle"]:
        del names[0]
        run_when_idle()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        with suppress(Exception):  # the question will say what is wrong
            function_of(name)
    with suppress(OSError):  # the other side is gone
        _serve(connection)


if __name__ == "__main__":
    main()
