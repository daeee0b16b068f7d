"""Where the time of loading a model goes, beside what its files allow.

    python tests/benchmarks/load_times.py MODEL [--quantization int4] [--runs 5]

MODEL is a folder. Prints how fast its weights are read: from the page cache into one block of memory (the fastest there
is), from the page cache into new memory, as a load must, and from the disk; then loads in this process, from the
checkpoint and from the file of `--weights-cache`, with the time of each phase; and at last `POST /v1/load_model` of a
running server. Medians.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
from serving import serving

BLOCK = 1 << 20
THREADS = 4

PHASES = {
    "config": ("checkpoint.py", "read_config"),
    "choice of operations": ("op_choice.py", "choose_ops"),
    "identity of the files": ("identity.py", "identity"),
    "check of names and shapes": ("weights.py", "check"),
    "modules": ("build_module.py", "_assemble"),
    "packed weights": ("packed_weights.py", "restore"),
    "tensors of the checkpoint": ("mapping.py", "put"),
    "of these, packing": ("library.py", "pack"),
    "other weights": ("mapping.py", "finish"),
    "runner, programs and pages": ("leading_runner.py", "runner_of"),
}
"""Functions whose cumulative time is a phase; some are part of another one."""


def read(files: list[Path], into_new_memory: bool, from_disk: bool) -> float:
    """Seconds to read all files in several threads."""
    parts: list[tuple[int, int, int]] = []
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    for descriptor in descriptors:
        size = os.fstat(descriptor).st_size
        parts += [(descriptor, at, min(BLOCK, size - at)) for at in range(0, size, BLOCK)]
        if from_disk:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    lock, left = threading.Lock(), iter(parts)
    kept: list[bytearray] = []

    def work() -> None:
        memory = bytearray(BLOCK)
        while True:
            with lock:
                part = next(left, None)
            if part is None:
                return
            if into_new_memory:
                memory = bytearray(part[2])
                kept.append(memory)
            os.preadv(part[0], [memoryview(memory)[: part[2]]], part[1])

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    for descriptor in descriptors:
        os.close(descriptor)
    return took


def median(runs: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(runs))


def print_reading(files: list[Path], runs: int) -> None:
    size = sum(file.stat().st_size for file in files)
    for what, new, disk in (
        ("page cache to one block", False, False),
        ("page cache to new memory", True, False),
        ("disk to one block", False, True),
    ):
        took = median(runs, lambda new=new, disk=disk: read(files, new, disk))  # type: ignore[misc]
        print(f"{what:42} {took:7.3f} s  {size / took / 1e9:6.2f} GB/s")


def phases(profile: cProfile.Profile) -> Mapping[str, float]:
    stats: Any = pstats.Stats(profile)
    found = dict.fromkeys(PHASES, 0.0)
    for (file, _, function), row in stats.stats.items():
        for phase, (ending, name) in PHASES.items():
            if name == function and file.endswith(f"/{ending}"):
                found[phase] += row[3]
    return found


def print_loads(what: str, runs: int, settings: Mapping[str, Any], before: Callable[[], None]) -> None:
    """Load in this process, and print medians of the whole and of each phase."""
    from quire.engine.build import build_engine
    from quire.hooks.registry import load
    from quire.settings.model_config import ModelConfig

    registry, config = load(), ModelConfig(**settings)
    took, parts = list[float](), list[Mapping[str, float]]()
    for _ in range(runs + 1):
        before()
        profile, began = cProfile.Profile(), time.perf_counter()
        with profile:
            engine = build_engine(config, registry)
        took.append(time.perf_counter() - began)
        parts.append(phases(profile))
        for thread in threading.enumerate():
            if thread.name == "weights-writer":
                thread.join()  # an engine that is closed is not written
        engine.close()
    print(f"{what:42} {statistics.median(took[1:]):7.3f} s  (the first in this process {took[0]:.3f})")
    for phase in PHASES:
        seconds = statistics.median(part[phase] for part in parts[1:])
        if seconds >= 0.001:
            print(f"    {phase:38} {seconds:7.3f} s")


def print_server(what: str, folder: Path, runs: int, settings: Mapping[str, Any], cache: Path | None = None) -> None:
    """`POST /v1/load_model` until its answer, which comes when the model is ready."""
    flags = () if cache is None else ("--weights-cache", str(cache))
    with serving("demo-chat", *flags) as server, httpx.Client(base_url=server.url, timeout=600) as http:

        def load() -> float:
            body = {"name": "loaded", "model": str(folder), "settings": settings}
            began = time.perf_counter()
            reply = http.post("/v1/load_model", json=body)
            assert reply.status_code == 200, reply.text
            took = time.perf_counter() - began
            time.sleep(1)
            while cache is not None and any(cache.glob("*.unfinished")):
                time.sleep(0.1)  # a model that is unloaded is not written
            reply = http.post("/v1/unload_model", json={"name": "loaded"})
            assert reply.status_code == 200, reply.text
            return took

        load()
        print(f"{what:42} {median(runs, load):7.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quantization")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    files = sorted(args.model.glob("*.safetensors")) or sorted(args.model.glob("*.gguf"))
    print_reading(files, args.runs)
    settings = {"quantization": args.quantization} if args.quantization else {}

    def forget() -> None:
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    with tempfile.TemporaryDirectory() as cache:
        given = {"model": str(args.model), **settings}
        print_loads("load from the page cache", args.runs, given, lambda: None)
        print_loads("load from the disk", args.runs, given, forget)
        given["weights_cache"] = cache
        print_loads("load from --weights-cache", args.runs, given, lambda: None)
        print_server("POST /v1/load_model", args.model, args.runs, settings)
        print_server("POST /v1/load_model, --weights-cache", args.model, args.runs, settings, Path(cache))


if __name__ == "__main__":
    main()
