"""Two ranks of one thread each beside one process with two threads, in turns, on W1 and W3.

    python tests/benchmarks/peers/ranks.py MODEL... [--turns 5] [--works W1,W3]

Prints a line for each model and workload: the medians in seconds, and one process's divided by that of the ranks. Both
are loaded all the time, and idle while the other one runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from contenders import Worker

SETTINGS: dict[str, dict[str, int]] = {"one process": {}, "two ranks": {"tensor_parallel_size": 2}}


def measure(model: Path, works: list[str], turns: int, timeout: float) -> None:
    """The one that runs first changes with each turn; a first turn, which computes everything once, is not counted."""
    workers = dict[str, Worker]()
    try:
        for name, settings in SETTINGS.items():
            script = str(Path(__file__).with_name("workers.py"))
            command = (sys.executable, script, "quire", str(model), json.dumps(settings))
            workers[name] = Worker(f"{model.name}_{name.replace(' ', '_')}", command, timeout)
        seconds: dict[tuple[str, str], list[float]] = {(name, work): [] for name in workers for work in works}
        for turn in range(turns + 1):
            for name in list(workers)[:: -1 if turn % 2 else 1]:
                for work in works:
                    seconds[name, work].append(workers[name].ask(work, turn))
    finally:
        for worker in workers.values():
            worker.close()
    for work in works:
        one, ranks = (seconds[name, work][1:] for name in SETTINGS)
        own, theirs = statistics.median(one), statistics.median(ranks)
        each = [before / after for before, after in zip(one, ranks, strict=True)]
        print(
            f"{model.name} {work}: one process {own:.3f} s, two ranks {theirs:.3f} s, ratio {own / theirs:.2f} "
            f"({min(each):.2f} to {max(each):.2f} in {turns} turns)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", type=Path)
    parser.add_argument("--works", default="W1,W3", help="(default: W1,W3)")
    parser.add_argument("--turns", type=int, default=5, help="(default: 5)")
    parser.add_argument("--cores", default="0,1", help="two cores, as in 2,3 (default: 0,1)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for an answer (default: 180)")
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    for model in args.model:
        measure(model, args.works.split(","), args.turns, args.timeout)


if __name__ == "__main__":
    main()
