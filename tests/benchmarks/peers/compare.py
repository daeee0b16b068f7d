"""Quire beside llama.cpp and OpenVINO with quantized models, on two cores, in turns.

    python tests/benchmarks/peers/compare.py MODEL... --models FOLDER [--llama FOLDER] [--openvino-python FILE]

Every contender is a process that stays loaded, and idle while others run. A turn asks each for each workload once, with
a reading of the read bandwidth before it (1 GiB, two threads). W1 (32 requests at once), W3 (a prompt of 1024) and W5
(W1 with eight adapters) are seconds, W2 (one stream) is tokens a second while decoding. docs/performance.md says how
the models are made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from contenders import Contender, Places, Worker, bandwidth, contenders

DEFAULT = (
    "quire-int4",
    "llama-q4_0",
    "openvino-cb",
    "openvino-llm",
    "quire-q4_k_m",
    "llama-q4_k_m",
    "quire-int8",
    "quire-bf16",
    "quire-int4+lora",
)
FURTHER = (
    "one more of Quire: MODEL in --models, JSON of LLM's arguments; NAME ending in +lora: with adapters, for W1 and W5"
)


@dataclass(frozen=True)
class Reading:
    """The value of a workload, and the bandwidth in GB/s that was read just before."""

    model: str
    name: str
    work: str
    turn: int
    value: float
    gb_s: float


class Comparison:
    """One model. `known`: all contenders, by name; `names`: those to measure."""

    def __init__(self, model: str, known: dict[str, Contender], names: list[str], args: argparse.Namespace) -> None:
        self._model, self._known, self._names, self._args = model, known, names, args
        self._works: list[str] = args.works.split(",")
        self._alive: dict[str, Worker] = {}
        self._failed: dict[str, str] = {}
        self._readings: list[Reading] = []

    def measure(self, memory: Worker) -> None:
        """All turns. A contender that fails is left out of the rest. `memory` reads the bandwidth."""
        try:
            for turn in range(self._args.turns):
                first = turn % len(self._names)
                for name in self._names[first:] + self._names[:first]:
                    self._take_turn(name, turn, memory)
                print(f"  {self._model}: turn {turn + 1} of {self._args.turns}", file=sys.stderr, flush=True)
        finally:
            for worker in self._alive.values():
                worker.close()

    def _take_turn(self, name: str, turn: int, memory: Worker) -> None:
        for work in [work for work in self._works if work in self._known[name].works]:
            if name not in self._failed:
                self._read(name, work, turn, memory)
        if name in self._alive and (self._args.restart or name in self._failed):
            self._alive.pop(name).close()

    def _read(self, name: str, work: str, turn: int, memory: Worker) -> None:
        try:
            worker = self._alive.get(name) or self._start(name)
            gb_s = memory.ask("read")
            reading = Reading(self._model, name, work, turn, worker.ask(work, turn + 1), gb_s)
        except RuntimeError as error:
            self._failed[name] = f"{work}: {error}"
            print(f"    {name}: {self._failed[name]}", file=sys.stderr, flush=True)
            return
        self._readings.append(reading)
        if self._args.json:
            with self._args.json.open("a") as file:
                file.write(json.dumps(asdict(reading)) + "\n")

    def _start(self, name: str) -> Worker:
        worker = self._alive[name] = Worker(name, self._known[name].command, self._args.timeout)
        if "W5" in self._works and "W5" in self._known[name].works:
            worker.ask("adapters")
        return worker

    def _of(self, name: str, work: str) -> list[Reading]:
        return [reading for reading in self._readings if (reading.name, reading.work) == (name, work)]

    def report(self) -> None:
        base = self._args.against or self._names[0]
        for work in self._works:
            unit = "tokens/s while decoding" if work == "W2" else "seconds"
            print(f"\n{self._model} {work} ({unit}; a ratio above 1: {base} is faster)")
            print(f"  {'':18}   median      min      max   GB/s   ratio  (by turns)     share of bytes/bandwidth")
            for name in self._names:
                if readings := self._of(name, work):
                    print(self._line(name, readings, self._of(base, work) if name != base else []))
            before, after = (self._of("quire-int4+lora", which) for which in ("W1", "W5"))
            if work == "W5" and before and after:
                print(f"  throughput with eight adapters relative to W1: {median(before) / median(after):.3f}")
        for name, why in self._failed.items():
            print(f"  {name} failed: {why}")

    def _line(self, name: str, readings: list[Reading], base: list[Reading]) -> str:
        values, gb_s = [reading.value for reading in readings], statistics.median(r.gb_s for r in readings)
        line = f"  {name:18}{median(readings):9.3f}{min(values):9.3f}{max(values):9.3f}{gb_s:7.1f}"
        sign = 1 if readings[0].work == "W2" else -1
        if base:
            each = [(own.value / value) ** sign for own, value in zip(base, values, strict=False)]
            ratio = (median(base) / median(readings)) ** sign
            line += f"{ratio:8.2f}  ({min(each):.2f} to {max(each):.2f})"
        if readings[0].work == "W2" and (size := self._known[name].read_bytes):
            line = f"{line:78}{100 * median(readings) * size / 1e9 / gb_s:5.0f} %"
        return line


def median(readings: list[Reading]) -> float:
    return statistics.median(reading.value for reading in readings)


def other_cores(cores: str) -> str:
    """Those that are not among `cores`, or all if there are no others."""
    allowed = os.sched_getaffinity(0)
    return ",".join(map(str, sorted(allowed - {int(core) for core in cores.split(",")} or allowed)))


def contender(text: str) -> tuple[str, str]:
    """Name and CHECKOUT:MODEL:JSON of a further contender. Raises ValueError if a part is missing or is not JSON."""
    name, given = text.split("=", 1)
    _, _, settings = given.split(":", 2)
    json.loads(settings)
    return name, given


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="+", help="its names in --models: MODEL, MODEL-q4_0.gguf (…), ov-MODEL-int4, loras_MODEL")
    add("--models", type=Path, required=True, help="folder of the models")
    add("--checkout", type=Path, default=Path(__file__).parents[3], help="Quire, with its .venv (default: this one)")
    add("--llama", type=Path, help="folder of llama-server and llama-bench")
    add("--openvino-python", type=Path, help="interpreter that has openvino-genai")
    add("--cores", default="0,1", help="the two cores of what is measured (default: 0,1)")
    add("--client-cores", help="those of the client of llama-server and of this process (default: all but --cores)")
    add("--only", help="names of contenders, in this order, separated by commas")
    add("--works", default="W1,W2,W3,W5", help="(default: W1,W2,W3,W5)")
    add("--turns", type=int, default=5, help="(default: 5)")
    add("--restart", action="store_true", help="a new process of each contender in each turn")
    add("--quire", type=contender, action="append", default=[], metavar="NAME=CHECKOUT:MODEL:JSON", help=FURTHER)
    add("--against", help="the contender that ratios are relative to (default: the first)")
    add("--json", type=Path, help="append every reading to this file")
    add("--timeout", type=float, default=180, help="seconds that a contender has for an answer (default: 180)")
    return parser


def wanted(args: argparse.Namespace, known: dict[str, Contender]) -> list[str]:
    """Names of the contenders to measure. Raises ValueError for one that there is not."""
    runs_adapters = "W5" in args.works.split(",")
    usual = [name for name in DEFAULT if name in known and (runs_adapters or not name.endswith("+lora"))]
    names = args.only.split(",") if args.only else usual
    names += [name for name, _ in args.quire if name not in names]
    if unknown := {*names, args.against or names[0]} - {*known}:
        raise ValueError(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    if len(args.cores.split(",")) != 2:
        parser.error("--cores: two cores, as in 2,3")
    if unknown := {*args.works.split(",")} - {"W1", "W2", "W3", "W5"}:
        parser.error(f"--works: no {', '.join(sorted(unknown))}")
    client_cores = args.client_cores or other_cores(args.cores)
    places = Places(args.models, args.checkout, args.llama, args.openvino_python, args.cores, client_cores)
    known = {model: contenders(places, model, dict(args.quire)) for model in args.model}
    try:
        names = wanted(args, known[args.model[0]])
    except ValueError as error:
        parser.error(str(error))
    os.sched_setaffinity(0, {int(core) for core in client_cores.split(",")})
    memory = Worker("bandwidth", bandwidth(places), args.timeout)
    try:
        for model, found in known.items():
            comparison = Comparison(model, found, names, args)
            comparison.measure(memory)
            comparison.report()
    finally:
        memory.close()


if __name__ == "__main__":
    main()
