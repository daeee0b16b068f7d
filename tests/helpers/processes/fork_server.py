"""The program of a fork server: imports torch and Quire once, then forks a process for each request.

A fork becomes what a new Python would be that runs the module, but for what is imported already: arguments, import
path, environment, open files, directory, session, signal mask and priority are those of the request. A fork that starts
processes itself has a fork server of its own, which was forked before anything ran.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from forked_popen import MAX_BYTES, MAX_FILES, PROGRAMS, ForkedPopen, ForkRequest, key_of

MODULES = (
    "quire.cli",
    "quire.commands.serve",
    "quire.server.process.start",
    "quire.server.process.serve",
    "quire.engine_process.process",
    "quire.engine_process.ranks.process",
    "quire.engine_process.ranks.joined",
    "quire.engine.build",
    "quire.engine.loading.model_summary",
    "quire.isolation.isolated_process",
    "quire.engine.structured.compiler_process",
    "safetensors",
    "uvloop",
    "uvicorn.lifespan.on",
    "xgrammar",
    "llguidance",
    "lmformatenforcer",
)
PACKAGES = ("quire_plugins", "quire_adapters", "quire_models", "quire_kernels")

FIRST_NUMBER = 500
"""Of files that a fork has for itself, so that they are in the way of no file of a request."""


def preload() -> None:
    """Import what the programs import. Raises RuntimeError if that starts a thread, which forks would lack."""
    for name in MODULES:
        with suppress(ImportError):  # the fork will report it
            importlib.import_module(name)
    for package in map(importlib.import_module, PACKAGES):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ImportError):  # a library that is not installed
                importlib.import_module(found.name)
    from PIL import Image

    from quire_models.loading.config_classes import config_mapping

    config_mapping()
    Image.init()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import has started a thread")
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Fork for each request until the other end is closed. Returns in the forks only."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        body, files, _, _ = socket.recv_fds(connection, MAX_BYTES, MAX_FILES)
        if not body:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)  # with that the fork becomes a child of the process that asked
            connection.close()
            return ForkRequest(**json.loads(body)), files
        for file in files:
            os.close(file)
        os.waitpid(between, 0)


def forks_of(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """What a fork is to become. Returns in forks only, whose own processes are then forked as well."""
    request, files = serve(connection)
    while PROGRAMS[key_of(request.program)]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() != 0:
            theirs.close()
            fork_processes(ours)
            break
        show_title([f"fork server of {os.getppid()}"])
        ours.close()
        for file in files:
            os.close(file)
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        os.close(null)
        request, files = serve(theirs)
    return request, files


def fork_processes(connection: socket.socket) -> None:
    """Let the fork server at the other end fork the processes of this one."""
    with connection:
        kept = socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_NUMBER))
    ForkedPopen(lambda: kept).install()


def show_title(words: list[str]) -> None:
    """Make these the words of the command line that the system shows, in place of those of this program."""
    with open("/proc/self/stat") as file:
        begin, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    shown = b"\0".join(word.encode() for word in words)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def become(request: ForkRequest, files: list[int], path: list[str]) -> None:
    """Take on what the request says, and tell the process that asked. path: the import path without PYTHONPATH."""
    run_as = [] if request.program.endswith(".py") else ["-m"]
    show_title([sys.executable, *request.options, *run_as, request.program, *request.words])
    reply, *sent = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, FIRST_NUMBER) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(sent, request.files, strict=True):
        os.dup2(file, number)
        os.close(file)
    if request.new_session:
        os.setsid()
    elif request.process_group is not None:
        os.setpgid(0, request.process_group)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    os.setpriority(os.PRIO_PROCESS, 0, request.niceness)
    os.sched_setscheduler(0, request.policy, os.sched_param(0))
    first = [] if request.options else [request.folder if run_as else str(Path(request.program).parent)]
    added = filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*first, *dict.fromkeys([*added, *path])]
    importlib.invalidate_caches()
    while os.getppid() not in (request.parent, 1):
        os.sched_yield()
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked_signals)
    with socket.socket(fileno=reply) as connection:
        connection.sendall(str(os.getpid()).encode())


def program(request: ForkRequest) -> Callable[[], object]:
    """What runs the module or script as the main program."""
    if request.program.endswith(".py"):
        sys.argv[:] = [request.program, *request.words]
        return partial(runpy.run_path, request.program, run_name="__main__")
    sys.argv[1:] = request.words
    sys.modules.pop(request.program, None)  # runpy warns if it is imported already
    return partial(runpy.run_module, request.program, run_name="__main__", alter_sys=True)


def run(request: ForkRequest) -> NoReturn:
    """Run the module and end as Python ends, but for clearing modules, of which most are not the program's."""
    status = 0
    try:
        program(request)()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve the process that holds the other end of the socket whose number is the first argument."""
    path = sys.path[1:]
    connection = socket.socket(fileno=int(sys.argv[1]))
    preload()
    request, files = forks_of(connection)
    become(request, files, path)
    run(request)


if __name__ == "__main__":
    main()
