"""Which programs compare.py measures, and the processes that stay loaded and answer its questions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
GGUF_TYPES = ("q4_0", "q4_k_m", "q8_0")


@dataclass(frozen=True)
class Places:
    """Where programs and models lie, and the cores of what is measured and of what is not, as taskset takes them."""

    models: Path
    checkout: Path
    llama: Path | None
    openvino_python: Path | None
    cores: str
    client_cores: str


@dataclass(frozen=True)
class Contender:
    """A worker's command, the workloads it runs, and the bytes of weights in a step of one row, 0 if unknown."""

    command: tuple[str, ...]
    works: tuple[str, ...]
    read_bytes: int


def size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def contenders(places: Places, model: str, more: dict[str, str]) -> dict[str, Contender]:
    """By name. `more`: further ones of Quire, by name, as CHECKOUT:MODEL:JSON."""
    known = {name: quire(places, model, name, text) for name, text in (quire_settings(places, model) | more).items()}
    if places.llama:
        for kind in GGUF_TYPES:
            file = places.models / f"{model}-{kind}.gguf"
            worker = (sys.executable, str(HERE / "llama_worker.py"), str(places.llama), str(file), places.cores)
            command = ("taskset", "-c", places.client_cores, *worker)
            known[f"llama-{kind}"] = Contender(command, ("W1", "W2", "W3"), size(file))
    if places.openvino_python:
        folder = places.models / f"ov-{model}-int4"
        for kind, works in (("cb", ("W1", "W2", "W3")), ("llm", ("W2", "W3"))):
            worker = (str(places.openvino_python), str(HERE / "workers.py"), "openvino", kind, str(folder))
            command = ("taskset", "-c", places.cores, *worker)
            known[f"openvino-{kind}"] = Contender(command, works, size(folder / "openvino_model.bin"))
    return known


def quire_settings(places: Places, model: str) -> dict[str, str]:
    """By the name of a contender: CHECKOUT:MODEL:JSON."""
    kinds = {name: {"quantization": name} for name in ("int4", "int4-asym", "int8")}
    kinds |= {"int4+lora": {"quantization": "int4"}, "bf16": {"dtype": "bfloat16"}}
    folders = {f"quire-{name}": f"{places.checkout}:{model}:{json.dumps(given)}" for name, given in kinds.items()}
    return folders | {f"quire-{kind}": f"{places.checkout}:{model}-{kind}.gguf:{{}}" for kind in GGUF_TYPES}


def quire(places: Places, model: str, name: str, text: str) -> Contender:
    checkout, path, settings = text.split(":", 2)
    folder = places.models / path
    worker = (f"{checkout}/.venv/bin/python", str(HERE / "workers.py"), "quire", str(folder), settings)
    command = ("taskset", "-c", places.cores, *worker)
    if name.endswith("+lora"):
        return Contender((*command, str(places.models / f"loras_{model}")), ("W1", "W5"), 0)
    unquantized = name == "quire-bf16"
    return Contender(command, ("W1", "W2", "W3"), size(folder / "model.safetensors" if unquantized else folder))


def bandwidth(places: Places) -> tuple[str, ...]:
    """The command of a worker that answers with the read bandwidth of two threads, in GB/s."""
    python = places.checkout / ".venv/bin/python"
    return ("taskset", "-c", places.cores, str(python), str(HERE / "workers.py"), "bandwidth")


class Worker:
    """A process that answers one question at a time. Raises RuntimeError if it fails or takes too long."""

    def __init__(self, name: str, command: tuple[str, ...], timeout: float) -> None:
        self._log, self._timeout = Path(tempfile.gettempdir(), f"compare_{name}.log"), timeout
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        pipe, begin = subprocess.PIPE, time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env, start_new_session=True
            )
        try:
            self._result()
        except BaseException:
            self.close()
            raise
        print(f"    {name}: ready after {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)

    def ask(self, work: str, rep: int = 0) -> float:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"work": work, "rep": rep}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"{error}; see {self._log}") from error
        return self._result()

    def close(self) -> None:
        """Ends the process, and what it started."""
        assert self._process.stdin
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(20)
        self._kill()
        self._process.wait()

    def _result(self) -> float:
        timer = threading.Timer(self._timeout, self._kill)
        timer.start()
        try:
            for line in self._process.stdout or ():
                if line.startswith("RESULT "):
                    found = json.loads(line.removeprefix("RESULT "))
                    if "error" in found:
                        raise RuntimeError(found["error"])
                    return float(found["value"])
        finally:
            timer.cancel()
        raise RuntimeError(f"ended with {self._process.wait()}; see {self._log}")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
