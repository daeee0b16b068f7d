"""Many models on a server with memory for few, asked by many clients: wrong answers, errors, memory, delays.

    python tests/benchmarks/model_churn.py --minutes 2

Each model, and each adapter, says one letter whatever it is asked, so a wrong answer is seen. Clients choose by Zipf's
law; one more client unloads and loads models. A stream on a pinned model shows what the others cost it: beside requests
for models that fit in memory, and while models come and go.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
import yaml
from letter_adapters import Voices, let_say
from serving import Server, serving

from quire.isolation.process_state import resident_bytes
from quire_testing.tiny import tiny_llama

LETTERS = string.ascii_uppercase + string.ascii_lowercase
SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
KV_BYTES = 16 << 20
PINNED = "m0"
ADAPTERS_EACH = 2
POLL_S = 0.02
"""Time between two looks at the memory of the processes."""
ALONE_S = 5.0
"""How long the stream runs alone, and beside models that stay."""


@dataclass
class Seen:
    """What was counted. gaps_s: between the tokens of the stream on the pinned model. waits_s: of all answers."""

    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)


def make_models(root: Path, count: int, with_adapters: int) -> tuple[dict[str, str], dict[str, Path]]:
    """Letters by name of model or adapter, and folders of models; m3-0 is an adapter of m3, in a folder m3-0."""
    letters, folders = {}, {}
    for number in range(count):
        name = f"m{number}"
        letters[name] = LETTERS[number]
        folders[name] = let_say(tiny_llama(root / name, seed=number, **SIZES), letters[name])
        for i in range(ADAPTERS_EACH if number < with_adapters else 0):
            letter = LETTERS[count + number * ADAPTERS_EACH + i]
            Voices(folders[name], louder=30).adapter(root / f"{name}-{i}", letter)
            letters[f"{name}-{i}"] = letter
    return letters, folders


def settings(root: Path, letters: Mapping[str, str], folders: Mapping[str, Path], budget: int) -> Path:
    """The file of --config: one model is pinned and loaded at the start, the others are loaded on demand."""
    on_demand = {"load": "on-demand", "keep_alive": "20s"}
    models = [
        {"name": name, "model": str(folder), **({"pinned": True} if name == PINNED else on_demand)}
        for name, folder in folders.items()
    ]
    adapters = [
        json.dumps({"name": name, "path": str(root / name), "base_model_name": name.split("-")[0]})
        for name in letters
        if "-" in name
    ]
    content = {
        "memory-budget": budget,
        "kv-cache-memory-bytes": KV_BYTES,
        "max-num-seqs": 32,
        "dtype": "float32",
        "device": "cpu",
        "enable-lora": True,
        "lora-modules": adapters,
        "models": models,
    }
    file = root / "serve.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def by_zipf(names: Sequence[str], rng: random.Random) -> str:
    return rng.choices(names, [1 / rank for rank in range(1, len(names) + 1)])[0]


async def ask(
    http: httpx.AsyncClient, seen: Seen, letters: Mapping[str, str], names: Sequence[str], until: float
) -> None:
    """One client: requests until a time, some of them given up."""
    rng = random.Random(len(names) + id(http) % 997 + seen.answers.total())
    while time.monotonic() < until:
        name, count = by_zipf(names, rng), rng.randint(1, 24)
        body = {
            "model": name,
            "prompt": "x" * rng.randint(1, 40),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
        }
        began = time.monotonic()
        try:
            reply = await asyncio.wait_for(
                http.post("/v1/completions", json=body), 0.05 if rng.random() < 0.03 else 300
            )
        except TimeoutError:
            seen.answers["given up"] += 1
            continue
        seen.waits_s.append(time.monotonic() - began)
        seen.answers[str(reply.status_code)] += 1
        if reply.status_code != 200:
            seen.problems.append(f"{name}: {reply.status_code} {reply.text[:200]}")
        elif (text := reply.json()["choices"][0]["text"]) != letters[name] * count:
            seen.answers["wrong"] += 1
            seen.problems.append(f"{name}: {text!r} instead of {letters[name] * count!r}")


async def stream(http: httpx.AsyncClient, seen: Seen, until: float) -> None:
    """Streams of the pinned model, one after the other."""
    body = {"model": PINNED, "prompt": "x", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
    while time.monotonic() < until:
        last: float | None = None
        async with http.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    if last is not None:
                        seen.gaps_s.append(now - last)
                    last = now


async def change_models(
    http: httpx.AsyncClient, seen: Seen, letters: Mapping[str, str], folders: Mapping[str, Path], until: float
) -> None:
    """Load, ask and unload the models that the other clients do not name."""
    rng = random.Random(0)
    while time.monotonic() < until:
        name = rng.choice(list(folders))
        new = {"load": rng.choice(["startup", "on-demand"])}
        for path, body in (
            ("load_model", {"name": name, "model": str(folders[name]), "settings": new}),
            ("completions", {"model": name, "prompt": "x", "max_tokens": 4, "temperature": 0, "ignore_eos": True}),
            ("unload_model", {"name": name}),
        ):
            reply = await http.post(f"/v1/{path}", json=body)
            seen.answers[f"{path} {reply.status_code}"] += 1
            if reply.status_code != 200:
                seen.problems.append(f"{path} {name}: {reply.status_code} {reply.text[:200]}")
            elif path == "completions" and reply.json()["choices"][0]["text"] != letters[name] * 4:
                seen.answers["wrong"] += 1
        await asyncio.sleep(rng.random())


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


async def run(
    url: str,
    letters: Mapping[str, str],
    folders: Mapping[str, Path],
    changing: Sequence[str],
    clients: int,
    seconds: float,
) -> dict[str, Seen]:
    """What was seen while the stream was alone, beside models that stay, and while models come and go."""
    found: dict[str, Seen] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        asked = [name for name in letters if name.split("-")[0] not in changing]
        random.Random(1).shuffle(asked)
        for phase, names, num_clients, long in (
            ("alone", (), 0, min(ALONE_S, seconds)),
            ("models that stay", (PINNED, "m1", "m2"), clients, min(ALONE_S, seconds)),
            ("models that come and go", asked, clients, seconds),
        ):
            seen = found[phase] = Seen()
            for name in names if num_clients and len(names) < len(asked) else ():
                await http.post("/v1/completions", json={"model": name, "prompt": "x", "max_tokens": 1})
            until = time.monotonic() + long
            work = [ask(http, seen, letters, names, until) for _ in range(num_clients)]
            if phase == "models that come and go":
                work.append(change_models(http, seen, letters, {name: folders[name] for name in changing}, until))
            await asyncio.gather(stream(http, seen, until), *work)
    return found


def metric(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"quire:{name}"))


def at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def budget_for(file: Path, guess: int, fitting: float) -> int:
    """The budget with which so many models fit: what a server with a large budget takes without models, and theirs."""
    with serving("--config", file) as server:
        text = httpx.get(f"{server.url}/metrics").text
    one = metric(text, 'memory_bytes{kind="models"}')
    taken = guess - metric(text, 'memory_bytes{kind="limit"}') - guess // 16
    return int((taken + fitting * one) * 16 / 15)


def report(found: Mapping[str, Seen], text: str, peak: int, budget: int) -> bool:
    """Print the figures; whether all are right."""
    for phase, seen in found.items():
        gaps = f"{1000 * at(seen.gaps_s, 0.5):.1f} ms, p99 {1000 * at(seen.gaps_s, 0.99):.1f} ms"
        print(f"{phase}: {len(seen.gaps_s)} tokens of the pinned model, between two {gaps}")
    seen = found["models that come and go"]
    print(f"answers: {dict(seen.answers)}")
    print(f"time of an answer: median {at(seen.waits_s, 0.5):.2f} s, p99 {at(seen.waits_s, 0.99):.2f} s")
    loads, seconds = metric(text, "model_loads_total"), metric(text, "model_load_seconds_sum")
    evictions = metric(text, "model_evictions_total")
    print(f"loads: {loads:.0f}, {seconds / max(1, loads):.3f} s each; evictions: {evictions:.0f}")
    print(f"memory: at most {peak / 2**20:.0f} MiB of {budget / 2**20:.0f} MiB ({peak / budget:.1%})")
    for problem in seen.problems[:10]:
        print(problem)
    return not seen.problems and peak <= 1.02 * budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--fitting", type=float, default=5, help="models for which there is memory")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--budget", type=int, help="bytes, instead of those for --fitting models")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        letters, folders = make_models(root, args.models, with_adapters=6)
        changing = list(folders)[-2:]
        kept = {name: one for name, one in folders.items() if name not in changing}
        guess = 8 << 30
        budget = args.budget or budget_for(settings(root, letters, kept, guess), guess, args.fitting + 0.5)
        with serving("--config", settings(root, letters, kept, budget)) as server:
            peak = Peak(server)
            with peak.watched():
                found = asyncio.run(run(server.url, letters, folders, changing, args.clients, 60 * args.minutes))
            text = httpx.get(f"{server.url}/metrics").text
            restarts = server.output().count("ended too often") + server.output().count("Traceback")
        right = report(found, text, peak.num_bytes, budget)
    raise SystemExit(not right or restarts > 0)


if __name__ == "__main__":
    main()
