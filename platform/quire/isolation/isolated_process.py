"""The program of the processes behind `quire.isolation.isolated_calls`: it calls functions that read untrusted files.

A request names a function and its arguments; the reply is its result or its error, both as JSON. The process may be
killed at any time. The system kills it first when memory is short.
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

from quire.errors import QuireError
from quire.isolation.child_process import LENGTH, frame, read_frame
from quire.isolation.plugin_calls import Shared

KILL_GRACE_S = 5.0
"""Time after the limit of a call in which the parent kills this process. Then it exits: the parent may be gone."""


@dataclass(frozen=True)
class CallRequest:
    """A call. function: module:name. memory_bytes: limit in addition to what the process has. timeout_s: its limit."""

    function: str
    args: list[Any]
    memory_bytes: int
    timeout_s: float


@dataclass(frozen=True)
class CallReply:
    """The outcome of a call: its value, or one of three errors.

    error: a QuireError, as `QuireError.wire`. excess: which limit it exceeded, as a clause. failure: any other error.
    """

    value: Any = None
    error: tuple[str, ...] | None = None
    excess: str | None = None
    failure: str | None = None


def encode(message: CallRequest | CallReply) -> bytes:
    """A message as JSON. Raises TypeError or ValueError if it holds more than plain data."""
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def find_function(name: str) -> Callable[..., Any]:
    """The function of a name, which is module:name."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def function_name(function: Callable[..., Any]) -> str:
    """The name by which `find_function` finds a function."""
    return f"{function.__module__}:{function.__qualname__}"


def _limit_resources(request: CallRequest) -> None:
    """Limit address space, in addition to what is in use now, and processor time."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = now + request.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        limit = int(time.process_time() + request.timeout_s) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (limit if hard < 0 else min(limit, hard), hard))


def _reply_to(request: CallRequest) -> tuple[CallReply, Shared | None]:
    try:
        function = find_function(request.function)
        _limit_resources(request)
        result = function(*request.args)
    except QuireError as error:
        return CallReply(error=error.wire), None
    except MemoryError:
        return CallReply(excess="needs too much memory"), None
    except RecursionError:
        return CallReply(excess="is nested too deeply"), None
    except Exception as error:
        return CallReply(failure=f"{type(error).__name__}: {error}"[:500]), None
    shared = result if isinstance(result, Shared) else None
    return CallReply(value=result if shared is None else shared.value), shared


def _serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    while (body := read_frame(stream)) is not None:
        request = CallRequest(**json.loads(body))
        faulthandler.dump_traceback_later(request.timeout_s + KILL_GRACE_S, exit=True, file=sys.stderr)
        reply, shared = _reply_to(request)
        message = frame(encode(reply))
        if shared is None:
            connection.sendall(message)
        else:
            socket.send_fds(connection, [message[: LENGTH.size]], [shared.memory.fileno()])
            connection.sendall(message[LENGTH.size :])
            shared.memory.close()
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Reply until the parent closes the connection. Arguments: names of functions to import in advance."""
    sys.stdout = sys.stderr  # standard output is the connection; libraries must not print there
    connection = socket.socket(fileno=0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in sys.argv[1:]:
        with suppress(Exception):  # the call will report the error
            find_function(name)
    with suppress(OSError):  # the parent closed the connection
        _serve(connection)


if __name__ == "__main__":
    main()
