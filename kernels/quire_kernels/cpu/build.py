"""Compiles the C++ ops once for each instruction set and reuses the compiled library afterwards.

A wheel may bring compiled libraries in `PREBUILT`; their names contain a digest of the sources and options alone.

The file name contains a digest of the sources, the compiler and its options, so a changed input yields a new file.
It also contains a digest of the file's content: a truncated or modified library is compiled again, because
loading it could crash the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from quire_kernels.cpu.isa import InstructionSet

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
"""Hidden, because visible variables of templates are unique in a process, even if it has loaded the ops for several
instruction sets, where their sizes differ.
"""
COMPILE_SECONDS = 300
POLL_SECONDS = 0.1
"""Between two looks whether another process still compiles."""
MIN_FREE_BYTES = 1 << 20
OLD_SECONDS = 30 * 24 * 3600


class BuildError(Exception):
    """The C++ ops could not be compiled; the message says why."""


@cache
def compiler() -> tuple[str, ...] | None:
    """The C++ compiler's command: $CXX, or the first compiler in PATH; None without one."""
    chosen = os.environ.get("CXX")
    if chosen:
        return tuple(shlex.split(chosen))
    return next(((found,) for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)


def library(isa: InstructionSet) -> Path:
    """Path of the loadable shared library for an instruction set; compiles it if necessary. Raises BuildError."""
    shipped = PREBUILT / prebuilt_name(isa)
    if shipped.exists():
        try:
            ctypes.CDLL(str(shipped))
            return shipped
        except OSError as error:  # of an older C library, for example
            log.warning("The compiled CPU ops of the installation cannot be loaded here: %s", error)
    command = compiler()
    if command is None:
        raise BuildError(
            "there is no C++ compiler (g++, c++ or clang++ in PATH, or $CXX); on Debian and Ubuntu: apt install g++"
        )
    stem = f"ops-{isa.name}-{_digest(command, isa)}"
    problems: list[str] = []
    for folder in _folders():
        with _noting(problems):
            return _loadable(_found(folder, stem))
    problems.clear()  # so far only the expected error: not compiled yet
    for folder in _folders():
        with _noting(problems):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_ours(folder)
            with _alone_in(folder):
                with suppress(FileNotFoundError):
                    return _loadable(_found(folder, stem))  # another process has compiled it meanwhile
                compiled = _compile(command, isa, folder, stem)
            _remove_old(compiled, isa)
            return _loadable(compiled)
    raise BuildError(f"there is no usable folder for compiled ops: {'; '.join(problems)}")


def prebuilt_name(isa: InstructionSet) -> str:
    """File name of the library of an instruction set in a wheel."""
    return f"ops-{isa.name}-{_source_digest(isa).hexdigest()[:16]}.so"


def prebuild(isa: InstructionSet, folder: Path) -> Path:
    """Compile the library of an instruction set for a wheel, on any machine. Raises BuildError, OSError."""
    command = compiler()
    if command is None:
        raise BuildError("there is no C++ compiler (g++, c++ or clang++ in PATH, or $CXX)")
    folder.mkdir(parents=True, exist_ok=True)
    return _compile(command, isa, folder, "ops").replace(folder / prebuilt_name(isa))


def _folders() -> tuple[Path, Path]:
    """Folders for compiled ops: the user's cache, else the folder for temporary files."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache_home) / "quire" / "ops", Path(tempfile.gettempdir()) / f"quire-ops-{os.getuid()}"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait while another process compiles for this folder; but not for one that takes longer than a compiler may."""
    until = time.monotonic() + COMPILE_SECONDS
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        while not _locked(descriptor) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Whether this process is alone in a folder now; also where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Append an OSError to `problems` instead of raising it."""
    try:
        yield
    except OSError as error:
        problems.append(str(error))


def _found(folder: Path, stem: str) -> Path:
    """The library whose content matches its name; deletes those that do not match. Raises OSError if there is none."""
    _check_ours(folder)
    for path in sorted(folder.glob(f"{stem}-*.so")):
        if path.name == f"{stem}-{_content_digest(path)}.so":
            return path
        log.warning("%s is damaged: its content does not match its name. It will be compiled again.", path)
        path.unlink(missing_ok=True)
    raise FileNotFoundError(f"{folder} has no library {stem}")


def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _loadable(path: Path) -> Path:
    """`path`, if this process can load it. Raises OSError if another user could have written it or execution is
    denied.
    """
    _check_ours(path.parent)
    ctypes.CDLL(str(path))
    return path


def _check_ours(folder: Path) -> None:
    """Raise OSError for a folder in which another user could replace the library."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
        raise PermissionError(f"{folder} must be a folder of this user that no other user can write to")


def _remove_old(target: Path, isa: InstructionSet) -> None:
    """Delete libraries of earlier versions."""
    for path in target.parent.glob(f"ops-{isa.name}-*.so"):
        if path != target and path.stat().st_mtime < time.time() - OLD_SECONDS:
            path.unlink(missing_ok=True)


def _digest(command: tuple[str, ...], isa: InstructionSet) -> str:
    digest = _source_digest(isa)
    digest.update(" ".join((*command, version(command))).encode())
    return digest.hexdigest()[:16]


def _source_digest(isa: InstructionSet) -> hashlib._Hash:
    digest = hashlib.sha256()
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(source.relative_to(SOURCES)).encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(" ".join((*OPTIONS, *isa.options)).encode())
    return digest


@cache
def version(command: tuple[str, ...]) -> str:
    """The first line of the compiler's version text. Raises BuildError if the compiler does not run."""
    done = _run([*command, "--version"], 60)
    if done.returncode:
        raise BuildError(f"the C++ compiler {shlex.join(command)} does not run: it ends with status {done.returncode}")
    return done.stdout.partition("\n")[0]


def _compile(command: tuple[str, ...], isa: InstructionSet, folder: Path, stem: str) -> Path:
    log.warning("Compiling the CPU ops for %s, once on this machine: up to a minute ...", isa.name)
    options = (*command, *OPTIONS, *isa.options, "-I", str(SOURCES))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        objects = [(source, Path(temporary) / f"{source.stem}.o") for source in sorted(SOURCES.rglob("*.cpp"))]
        lines = [[*options, "-c", str(source), "-o", str(made)] for source, made in objects]
        with ThreadPoolExecutor(max_workers=len(lines), thread_name_prefix="compiler") as compilers:
            for _ in compilers.map(lambda line: _run_compiler(command, line, folder, temporary), lines):
                pass  # raises the first error
        compiled = Path(temporary) / f"{stem}.so"
        link = [*options, "-shared", *(str(made) for _, made in objects), "-o", str(compiled)]
        _run_compiler(command, link, folder, temporary)
        target = folder / f"{stem}-{_content_digest(compiled)}.so"
        os.replace(compiled, target)  # another process may have compiled the same file: the last one stays
    return target


def _run_compiler(command: tuple[str, ...], line: list[str], folder: Path, temporary: str) -> None:
    """Compile or link. Raises OSError if the disk is full, BuildError for other failures."""
    done = _run(line, COMPILE_SECONDS, temporary)
    if done.returncode and _is_full(folder, done.stderr):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if done.returncode:
        errors = [text for text in done.stderr.splitlines() if "error" in text] or done.stderr.splitlines()
        message = textwrap.shorten(" ".join(errors[:3]), 600) or f"status {done.returncode}"
        raise BuildError(f"{shlex.join(command)} failed: {message}")


def _is_full(folder: Path, messages: str) -> bool:
    """Whether the compiler failed because the disk is full. A linker may say so only by how it ends."""
    return os.strerror(errno.ENOSPC) in messages or shutil.disk_usage(folder).free < MIN_FREE_BYTES


def _run(line: list[str], seconds: float, folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the compiler with English messages. Raises BuildError if it cannot be started or takes too long.

    folder: for its temporary files, so that one disk needs to have room, not two.
    """
    environment = {**os.environ, "LC_ALL": "C", **({"TMPDIR": folder} if folder else {})}
    try:
        return subprocess.run(
            line, check=False, capture_output=True, text=True, errors="replace", timeout=seconds, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler {line[0]} does not run: {error}") from error
