"""Hostile adapters against a live server, one after another, while a stream runs beside them.

    python tests/attack/files.py [--cases "a pipe" …]

Prints a table: attack, answer, seconds until it came, and the longest stall of the stream meanwhile. Then faults: two
readers that are stuck, a killed reader, the engine's process killed in the midst of a load, a limit on the server's
memory, and a full disk. Everything happens on 127.0.0.1; it takes a few minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from adapter_client import AdapterClient, held_back, reads_files
from hostile_folders import HOSTILE
from serving import Server, serving

GOOD = Path(__file__).parents[2] / "plugins" / "quire_demos" / "demo_chat" / "adapters" / "pirate"
FLAGS = ("base=demo-chat", "--enable-lora", "--kv-cache-memory-bytes", "128M", "--lora-load-timeout-s", "20")


class Stream:
    """Streams of one client, one after another, and the longest time between two of their pieces."""

    def __init__(self, asks: AdapterClient) -> None:
        self._asks, self._ended = asks, threading.Event()
        self.longest = 0.0
        self._last = time.perf_counter()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._asks.stream("base", 400) as pieces:
                self._last = time.perf_counter()  # between two streams nothing was promised
                for _ in pieces:
                    now = time.perf_counter()
                    self.longest, self._last = max(self.longest, now - self._last), now
                    if self._ended.is_set():
                        return

    def take(self) -> float:
        """The longest stall since the last call, one that goes on included."""
        found, self.longest = max(self.longest, time.perf_counter() - self._last), 0.0
        return found

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)


def row(what: str, answer: str, seconds: float, stall: float | None) -> None:
    shown = "-" if stall is None else f"{stall * 1e3:.0f} ms"
    print(f"| {what} | {answer[:110]} | {seconds:.2f} s | {shown} |", flush=True)


def timed(what: str, stream: Stream | None, call: Callable[[], str]) -> None:
    if stream is not None:
        stream.take()
    begin = time.perf_counter()
    answer = call()
    row(what, answer, time.perf_counter() - begin, None if stream is None else stream.take())


def load(asks: AdapterClient, name: str, folder: Path) -> str:
    reply = asks.load(name, folder)
    return f"{reply.status_code} {reply.text if reply.status_code == 200 else reply.json()['error']['message']}"


@contextmanager
def streaming(server: Server) -> Iterator[tuple[AdapterClient, Stream]]:
    asks, beside = AdapterClient(server.url), AdapterClient(server.url)
    stream = Stream(beside)
    try:
        yield asks, stream
    finally:
        stream.end()


def hostile(server: Server, root: Path, cases: list[str]) -> None:
    with streaming(server) as (asks, stream):
        timed("nothing", stream, lambda: str(time.sleep(5) or "-"))
        timed("a good one", stream, lambda: load(asks, "good", GOOD))
        for number, what in enumerate(cases):
            folder = Path(shutil.copytree(GOOD, root / str(number)))
            HOSTILE[what][0](folder)
            timed(what, stream, lambda number=number, folder=folder: load(asks, f"bad-{number}", folder))
        with held_back(server):
            first = threading.Thread(target=load, args=(asks, "stuck-0", GOOD))
            first.start()
            timed("unloading while a reader is stuck", stream, lambda: str(asks.unload("good").status_code))
            timed("a reader that is stuck", stream, lambda: first.join() or "ended")
        timed("a good one afterwards", stream, lambda: load(asks, "good-2", GOOD))


def killed_reader(server: Server) -> None:
    with streaming(server) as (asks, stream), held_back(server):
        answer: list[str] = []
        loading = threading.Thread(target=lambda: answer.append(load(asks, "killed", GOOD)))
        loading.start()
        time.sleep(1)  # the load is under way, or about to be: either way it must end
        for entry in filter(str.isdigit, os.listdir("/proc")):
            if reads_files(int(entry), server):
                os.kill(int(entry), signal.SIGKILL)
        timed("the reader killed", stream, lambda: loading.join() or answer[0])


def killed_engine(server: Server) -> None:
    asks, answer = AdapterClient(server.url), list[str]()
    load(asks, "before", GOOD)  # so that there is a reader again
    with held_back(server):
        loading = threading.Thread(target=lambda: answer.append(load(asks, "midst", GOOD)))
        loading.start()
        time.sleep(1)
        readers = [int(e) for e in filter(str.isdigit, os.listdir("/proc")) if reads_files(int(e), server)]
        timed("the engine's process killed during a load", None, lambda: f"back as {server.kill_engine().engine_pid()}")
        loading.join()
    row("… the load", answer[0], 0, None)
    left = [pid for pid in readers if Path(f"/proc/{pid}").exists()]
    row("… readers left behind", str(len(left)), 0, None)
    timed("… a load afterwards", None, lambda: load(asks, "after", GOOD))


def full_disk(root: Path) -> None:
    """Temporary files, caches and adapters on a disk of 64 KB that is full."""
    disk = root / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True).returncode:
        row("a full disk", "not run: this user may not mount one", 0, None)
        return
    try:
        with suppress(OSError):
            (disk / "filling").write_bytes(bytes(1 << 20))
        with serving(*FLAGS, "--lora-cache-dir", disk / "cache", env={"TMPDIR": str(disk)}) as server:
            timed("a load with a full disk", None, lambda: load(AdapterClient(server.url), "good", GOOD))
    finally:
        subprocess.run(["umount", disk], check=True)


def little_memory(root: Path) -> None:
    """The engine's process may take no more address space than it has: reading is another's, packing is its own."""
    folder = Path(shutil.copytree(GOOD, root / "little"))
    with serving(*FLAGS) as server:
        pid = server.engine_pid()
        now = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        subprocess.run(["prlimit", f"--as={now + (64 << 20)}", "--pid", str(pid)], check=True)
        asks = AdapterClient(server.url)
        timed("a limit on the memory of the engine's process", None, lambda: load(asks, "little", folder))
        subprocess.run(["prlimit", "--as=unlimited", "--pid", str(pid)], check=False)
        timed("… without it", None, lambda: load(asks, "more", folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], help="words that the names of cases contain (default: all)")
    args = parser.parse_args()
    cases = [what for what in HOSTILE if not args.cases or any(words in what for words in args.cases)]
    print("| attack | answer | after | longest stall |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        with serving(*FLAGS) as server:
            hostile(server, Path(folder), cases)
            killed_reader(server)
            killed_engine(server)
        little_memory(Path(folder))
        full_disk(Path(folder))


if __name__ == "__main__":
    main()
