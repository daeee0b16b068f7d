"""Lets `subprocess.Popen` fork Quire's programs from a process that has imported them (`fork_server`).

A new Python that imports torch takes seconds, a fork some milliseconds. Only `python [-P] -m PROGRAM` and the scripts
of two folders are forked, with this interpreter; any other command starts as always. The fork is a child of the caller,
with the open files, directory, environment, session, signal mask and priority that it asked for.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"
HELPERS = Path(__file__).parents[1] / "programs"

PROGRAMS = {
    "quire.cli": True,
    "quire.engine_process.process": True,
    "fake_engine_process": True,
    str(EXAMPLES): True,
    str(HELPERS): True,
    "quire.engine_process.ranks.process": True,
    "quire.engine_process.ranks.joined": True,
    "quire.isolation.isolated_process": False,
    "quire.engine.structured.compiler_process": False,
    "pytest": False,
}
"""Modules that forks run, and the folders of scripts; whether they start processes themselves."""

MAX_BYTES = 1 << 17
MAX_FILES = 64
"""Limits of a request."""

ROOM_FOR_TITLE = 1000
"""Bytes of the command line that a fork shows."""

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
"""Parameters of `Popen._execute_child`."""


@dataclass(frozen=True)
class ForkRequest:
    """A process to fork. program: a module or script. options: of the interpreter.

    files: the numbers that the files sent along get in the fork.
    """

    program: str
    words: list[str]
    options: list[str]
    environment: dict[str, str]
    folder: str
    parent: int
    files: list[int]
    new_session: bool
    process_group: int | None
    blocked_signals: list[int]
    policy: int
    niceness: int


class ForkServer:
    """A fork server of this process, which starts with the first request."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> socket.socket:
        """The socket for requests."""
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                program = str(Path(__file__).with_name("fork_server.py"))
                self._process = subprocess.Popen(
                    [sys.executable, program, str(number), " " * ROOM_FOR_TITLE],
                    pass_fds=(number,),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "GOMP_SPINCOUNT": "20000", "OPENBLAS_NUM_THREADS": "1"},
                )
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


class ForkedPopen:
    """Takes the place of `Popen._execute_child`. connect: returns the socket of a fork server."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._execute_child: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._signature = inspect.signature(self._execute_child)
        self._lock = threading.RLock()  # the fork server itself is started by a Popen

    def install(self) -> None:
        def execute_child(popen: Any, *args: Any) -> None:
            given = self._signature.bind(popen, *args).arguments
            found = _parsed(given["args"])
            if found is None or given["shell"] or given["preexec_fn"] is not None:
                self._execute_child(popen, *args)
            else:
                self._fork(popen, given, *found)

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]

    def uninstall(self) -> None:
        subprocess.Popen._execute_child = self._execute_child  # type: ignore[attr-defined]

    def _fork(self, popen: Any, given: Mapping[str, Any], options: list[str], program: str, words: list[str]) -> None:
        chosen = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        standard = [number if file == -1 else file for number, file in enumerate(chosen)]
        passed = sorted(given["pass_fds"])
        request = ForkRequest(
            program=program,
            words=words,
            options=options,
            environment=dict(os.environ if given["env"] is None else given["env"]),
            folder=os.fspath(given["cwd"] or Path.cwd()),
            parent=os.getpid(),
            files=[0, 1, 2, *passed],
            new_session=given["start_new_session"],
            process_group=None if given["process_group"] == -1 else given["process_group"],
            blocked_signals=[int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            policy=os.sched_getscheduler(0),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
        )
        with self._lock:
            server = self._connect()
            with _adopting():
                popen.pid = _fork(server, request, [*standard, *passed])
        popen._child_created = True
        popen._close_pipe_fds(*(given[name] for name in PIPES))


def key_of(program: str) -> str:
    """The key in PROGRAMS of a module or script."""
    return str(Path(program).parent) if program.endswith(".py") else program


def _parsed(command: Any) -> tuple[list[str], str, list[str]] | None:
    """Options of the interpreter, module or script, and arguments of a command that can be forked; else None."""
    words = [os.fspath(word) for word in command] if isinstance(command, list | tuple) else []
    options = words[1:2] if words[1:2] == ["-P"] else []
    rest = words[1 + len(options) :]
    is_module = rest[:1] == ["-m"]
    program, *arguments = rest[int(is_module) :] or [""]
    if words[:1] != [sys.executable] or is_module is program.endswith(".py") or key_of(program) not in PROGRAMS:
        return None
    return options, program, arguments


@contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile, a descendant whose parent exits becomes a child of this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _fork(server: socket.socket, request: ForkRequest, files: Sequence[int]) -> int:
    """The process id of the fork, which is a child of this process. Raises OSError if the fork server is gone."""
    replies, theirs = socket.socketpair()
    with replies:
        with theirs:
            socket.send_fds(server, [json.dumps(asdict(request)).encode()], [theirs.fileno(), *files])
        reply = replies.recv(64)
    if not reply:
        raise OSError("the fork server does not fork")
    return int(reply)
