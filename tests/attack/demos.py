"""What the attacks share: a server of the demos, its processes' sizes, the probe beside it, the machine's load."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from PIL import Image
from serving import Server, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "demo_models"
PIRATE = ROOT / "plugins" / "quire_demos" / "demo_chat" / "adapters" / "pirate"
FLAGS = ("--kv-cache-memory-bytes", "64M", "--enable-lora", "--enable-auto-tool-choice", "--disable-access-log")
FLAGS += ("--disable-log-stats",)
IDLE_BOUND_MS, LOADED_BOUND_MS = 50.0, 150.0
BUSY_CORES = 0.3
"""The machine is loaded if others use more of its cores than this."""


@dataclass(frozen=True)
class Size:
    """Of a process: resident bytes, file descriptors, threads."""

    rss: int
    fds: int
    threads: int

    @classmethod
    def from_pid(cls, pid: int) -> Size:
        """That of a process; OSError if it has ended."""
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        status = Path(f"/proc/{pid}/status").read_text()
        threads = int(status.split("Threads:")[1].split()[0])
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd")), threads)

    def __str__(self) -> str:
        return f"{self.rss / 1e6:.0f} MB, {self.fds} fds, {self.threads} threads"


def sizes(server: Server) -> dict[str, Size]:
    """Of the process that answers HTTP, and the one that runs the models where there is one."""
    found = {"api": Size.from_pid(server.process.pid)}
    engine = server.engine_pid()
    if engine is not None:
        found["engine"] = Size.from_pid(engine)
    return found


class Probe:
    """`probe.py` beside a server."""

    def __init__(self, port: int, *flags: str) -> None:
        words = [sys.executable, str(Path(__file__).with_name("probe.py")), str(port), *flags]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def take(self, waits: bool = False) -> dict[str, Any]:
        """What it saw since the last time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("all\n" if waits else "longest\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@contextmanager
def demos(*words: str, probe: tuple[str, ...] | None = ()) -> Iterator[tuple[Server, Probe | None]]:
    """A server of all demos, warm, and a probe with these flags (None: no probe)."""
    with serving(*FLAGS, *words) as server:
        watching = Probe(server.port, *probe) if probe is not None else None
        try:
            if watching is not None:
                time.sleep(3)
                watching.take()
            yield server, watching
        finally:
            if watching is not None:
                watching.end()


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores the machine's processes use now."""

    def read() -> tuple[int, int]:
        figures = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(figures), figures[3] + figures[4]

    (total, idle), _ = read(), time.sleep(seconds)
    later, later_idle = read()
    passed = max(1, later - total)
    return (os.cpu_count() or 1) * (1 - (later_idle - idle) / passed)


def bound_ms() -> float:
    """Which bound holds on this machine now; prints it."""
    busy = busy_cores()
    bound = LOADED_BOUND_MS if busy > BUSY_CORES else IDLE_BOUND_MS
    print(f"Before the server starts, {busy:.1f} of {os.cpu_count()} cores are busy: the bound is {bound:.0f} ms.")
    return bound


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of all lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def picture(width: int, height: int, kind: str = "PNG") -> str:
    """A data: URL of a picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (40, 90, 160)).save(buffer, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def form(file: bytes, /, **fields: str) -> tuple[bytes, str]:
    """A multipart body with a file, and its content type."""
    mark = "attack-boundary"
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
    return b"".join([*parts, head, file, f"\r\n--{mark}--\r\n".encode()]), f"multipart/form-data; boundary={mark}"


def wav(seconds: float, rate: int = 16000, channels: int = 1) -> bytes:
    """A WAV file of silence."""
    size = int(seconds * rate) * channels * 2
    numbers = [
        b"RIFF", (36 + size).to_bytes(4, "little"), b"WAVEfmt ", (16).to_bytes(4, "little"),
        (1).to_bytes(2, "little"), channels.to_bytes(2, "little"), rate.to_bytes(4, "little"),
        (rate * channels * 2).to_bytes(4, "little"), (channels * 2).to_bytes(2, "little"), (16).to_bytes(2, "little"),
        b"data", size.to_bytes(4, "little"),
    ]  # fmt: skip
    return b"".join(numbers) + bytes(size)


def post(server: Server, path: str, body: Any) -> Any:
    """JSON to a route, and back; AssertionError unless it is 200."""
    import httpx

    answer = httpx.post(server.url + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text[:500]
    return answer.json()
