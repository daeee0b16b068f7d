"""Many models on a server with memory for few, asked by many clients: wrong answers, errors, memory, delays.

    python tests/benchmarks/services/model_churn.py --minutes 10

Each model, and each adapter, says one letter whatever it is asked, so a wrong answer is seen. Clients choose models,
adapters and aliases by Zipf's law. Others load and unload models and adapters, switch an alias, and change the file of
settings and send SIGHUP. A stream of a pinned model shows what that costs it. The undisturbed stream to compare with
runs beside requests of the same sizes at the times at which the former were answered, of models that stay loaded.

Prints a table; exit status 1 if something in it is over its limit. Clients and the stream are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())
sys.path.append(str(Path(__file__).parent / "churn"))

import httpx
from letter_models import SIZES, LetterModels
from serving import Server, serving

from quire.isolation.process_state import resident_bytes

PROGRAMS = Path(__file__).parent / "churn"
PINNED = "m0"
MAX_RATIO, MAX_MEMORY = 1.2, 1.02
POLL_S = 0.02
"""Time between two looks at the memory of the processes."""
ALONE_S = 5.0
"""How long the stream runs alone."""


class Peak:
    """The most memory of both processes together, watched in a thread."""

    def __init__(self, server: Server) -> None:
        self.num_bytes, self._server, self._ended = 0, server, threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        engine = self._server.await_engine_pid()

        def watch() -> None:
            while not self._ended.wait(POLL_S):
                now = resident_bytes(self._server.process.pid) + resident_bytes(engine)
                self.num_bytes = max(self.num_bytes, now)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


@dataclass
class Phase:
    """What the stream and the clients found. loads: of models meanwhile."""

    stream: Mapping[str, Any]
    clients: Mapping[str, Any] = field(default_factory=dict)
    loads: float = 0

    @property
    def problems(self) -> list[str]:
        return [*self.stream["problems"], *self.clients.get("problems", ())]

    def gap_ms(self, share: float) -> float:
        return 1000 * at(self.stream["gaps_s"], share)

    @property
    def rate(self) -> float:
        """Requests answered per second."""
        return len(self.clients["answered"]) / self.clients["seconds"] if self.clients else 0.0


class Programs:
    """Runs the programs of the folder `churn` against a server."""

    def __init__(self, server: Server, letters: Mapping[str, str]) -> None:
        self._server, self._letters = server, letters

    def _start(self, name: str, task: Mapping[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAMS / f"{name}.py")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"port": self._server.port, "pid": self._server.process.pid, **task}))
        process.stdin.close()
        process.stdin = None
        return process

    def clients(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        return _result(self._start("clients", {"letters": self._letters, **task}))

    def phase(self, seconds: float, task: Mapping[str, Any] | None = None) -> Phase:
        """The stream for some time, beside clients."""
        before = self._loads()
        stream = {"seconds": seconds, "model": PINNED, "letter": self._letters[PINNED]}
        streaming = self._start("pinned_stream", stream)
        clients = self.clients({"seconds": seconds, **task}) if task else {}
        return Phase(_result(streaming), clients, self._loads() - before)

    def _loads(self) -> float:
        return metric(httpx.get(f"{self._server.url}/metrics").text, "model_loads_total")


def _result(process: subprocess.Popen[str]) -> Mapping[str, Any]:
    out, _ = process.communicate()
    found: Mapping[str, Any] = json.loads(out)
    return found


def run(server: Server, models: LetterModels, plan: argparse.Namespace, file: Path) -> dict[str, Phase]:
    """What was seen while the stream was alone, while models come and go, and beside models that stay."""
    programs = Programs(server, models.letters)
    kept = list(models.folders)[:-3]
    asked = [name for name in models.letters if name.split("-")[0] in kept]
    random.Random(1).shuffle(asked)
    *changing, in_file = list(models.folders)[-3:]
    task = {
        "names": [*asked[:4], "switched", *asked[4:8], "configured", *asked[8:]],
        "clients": plan.clients,
        "targets": kept,
        "switched": "switched",
        "configured": "configured",
        "changing": {name: models.folders[name] for name in changing},
        "adapters": models.adapters,
        "file": str(file),
        "in_file": in_file,
        "file_model": models.folders[in_file],
    }
    seconds, undisturbed = 60 * plan.minutes, 60 * min(plan.minutes, plan.undisturbed_minutes)
    found = {"alone": programs.phase(min(ALONE_S, seconds))}
    found["churn"] = programs.phase(seconds, task)
    first = seconds - undisturbed
    answered = sorted((at_s - first, *rest) for at_s, *rest in found["churn"].clients["answered"] if at_s >= first)
    stay = [name for name in models.letters if name.split("-")[0] in kept[: int(plan.fitting)]]
    programs.clients({"names": stay})
    found["undisturbed"] = programs.phase(undisturbed, {"names": stay, "clients": plan.clients, "repeated": answered})
    return found


def metric(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"quire:{name}"))


def at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def budget_for(settings: Mapping[str, Any], file: Path, fitting: float) -> int:
    """The budget with which so many models fit: what a server with a large budget takes without models, and theirs."""
    file.write_text(json.dumps(settings))
    guess = settings["memory-budget"]
    with serving("--config", file) as server:
        text = httpx.get(f"{server.url}/metrics").text
    one = metric(text, 'memory_bytes{kind="models"}')
    taken = guess - metric(text, 'memory_bytes{kind="limit"}') - guess // 16
    return int((taken + fitting * one) * 16 / 15)


def is_error(what: str) -> bool:
    """Whether a key of the counts of answers, such as `load_model 503`, is that of an error."""
    status = what.rpartition(" ")[2]
    return status.isdigit() and status != "200"


def report(found: Mapping[str, Phase], text: str, peak: int, budget: int, log: str) -> bool:
    """Print the figures; whether all are within their limits."""
    for name, phase in found.items():
        gaps = ", ".join(f"p{share:g} {phase.gap_ms(share / 100):.2f}" for share in (50, 90, 99, 99.9, 100))
        num = len(phase.stream["gaps_s"])
        print(f"{name + ':':12} {num:6} gaps, ms: {gaps}; {phase.rate:.1f} answers/s, {phase.loads:.0f} loads")
    churn, calm = found["churn"], found["undisturbed"]
    print(f"answers: {json.dumps(churn.clients['answers'], sort_keys=True)}")
    waits = churn.clients["waits_s"]
    print(f"time of an answer: median {at(waits, 0.5):.2f} s, p99 {at(waits, 0.99):.2f} s, most {at(waits, 1):.2f} s")
    loads, load_s = metric(text, "model_loads_total"), metric(text, "model_load_seconds_sum")
    print(f"on demand: {loads:.0f} loads of {load_s / max(1, loads):.2f} s, "
          f"{metric(text, 'model_evictions_total'):.0f} unloads")  # fmt: skip
    problems = [problem for phase in found.values() for problem in phase.problems]
    for problem in problems[:10]:
        print(problem)
    answers = churn.clients["answers"]
    ratio = churn.gap_ms(0.99) / calm.gap_ms(0.99)
    rows = [
        ("answers with a status other than 200", sum(n for what, n in answers.items() if is_error(what)), 0),
        ("answers lost", answers.get("lost", 0), 0),
        ("answers wrong", answers.get("wrong", 0), 0),
        ("problems of any kind", len(problems), 0),
        ("tracebacks and restarts in the log", log.count("Traceback") + log.count("restarting"), 0),
        ("loads in the undisturbed phase", int(calm.loads), 0),
        (f"memory, of {budget / 2**20:.0f} MiB", round(peak / budget, 3), MAX_MEMORY),
        ("p99 between tokens, churn to undisturbed", round(ratio, 2), MAX_RATIO),
    ]
    print(f"\n{'':44} {'seen':>8} {'limit':>8}")
    for what, seen, limit in rows:
        print(f"{what:44} {seen:8} {limit:8}  {'ok' if seen <= limit else 'FAILED'}")
    return all(seen <= limit for _, seen, limit in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--undisturbed-minutes", type=float, default=2, help="at most as long as --minutes")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--size", choices=SIZES, default="small", help="of a model")
    parser.add_argument("--fitting", type=float, default=5, help="models for which there is memory")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--budget", type=int, help="bytes, instead of those for --fitting models")
    parser.add_argument("--folder", type=Path, help="keep the models there")
    parser.add_argument("--log", type=Path, help="write the server's log there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.folder or Path(temporary)
        models = LetterModels.make(
            root, args.models, (*range(5), *range(args.models - 3, args.models - 1)), 2, args.size
        )
        file, kept = Path(temporary) / "serve.yaml", list(models.folders)[:-3]
        first = {"configured": kept[0], "switched": kept[0]}
        budget = args.budget or budget_for(models.settings(kept, PINNED, 8 << 30, first), file, args.fitting + 0.5)
        file.write_text(json.dumps(models.settings(kept, PINNED, budget, {"configured": kept[0]})))
        # A program that nohup starts ignores SIGHUP, and so would the server; a handler is not inherited.
        ignored = signal.signal(signal.SIGHUP, lambda *_: None)
        with serving("--config", file) as server:
            signal.signal(signal.SIGHUP, ignored)
            httpx.post(
                f"{server.url}/v1/model_aliases", json={"alias": "switched", "model": kept[0]}
            ).raise_for_status()
            peak = Peak(server)
            with peak.watched():
                found = run(server, models, args, file)
            text = httpx.get(f"{server.url}/metrics").text
            server.stop()
            log = server.output()
        if args.log:
            args.log.write_text(log)
        print(f"budget: {budget} bytes")
        right = report(found, text, peak.num_bytes, budget, log)
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
