"""`bench structured`: what constraints on the output cost those who ask for them, and what they cost the others.

Three things, each measured in turns: the throughput of constrained requests over that of free ones of equal length,
the time that a new schema adds to the first token, and the time between the tokens of free streams while hostile
constraints are compiled beside them. The loop runs here as the host of a server runs it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.commands.bench.hostile import volley
from quire.commands.bench.offline import add_model_flags, engine_of
from quire.commands.bench.report import percentile, show, spread
from quire.commands.bench.workload import Job, add_workload_flags, at_least, jobs, positive
from quire.errors import StartupError
from quire.sampling import SamplingParams
from quire.structured import Structured
from quire.types import Prompt, Request

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of `bench structured`."""
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="128")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="turns of each kind; medians are reported")
    parser.add_argument("--streams", type=at_least(1), default=8, help="free streams that are watched")
    parser.add_argument("--stream-len", type=at_least(2), default=500, help="tokens of each of them")
    parser.add_argument("--hostile", type=at_least(1), default=20, help="hostile constraints in flight")
    parser.add_argument("--every", type=positive, default=1.0, help="seconds until those that ended are replaced")
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """The three, in this order. Raises StartupError for a model whose output cannot be constrained."""
    from quire.host.process import GIVE_WAY_S

    sys.setswitchinterval(GIVE_WAY_S)
    with closing(engine_of(args)) as engine:
        bench = _Bench(engine, args)
        bench.warm_up()
        figures = {"model": engine.info.name, **bench.throughput(), **bench.first_tokens(), **bench.beside()}
    show("structured", figures, args.output_json)
    return 0


def person(number: int) -> Structured:
    """A schema of the usual sort; every number is another one."""
    properties = {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 6},
        f"kind_{number}": {"enum": ["a", "b", "c"]},
    }
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return Structured(kind="json_schema", source=json.dumps(schema), any_whitespace=False)


@dataclass
class _Watch:
    """When the tokens of each request came, in seconds; and of those that failed, why."""

    times: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def gaps(self, ids: Iterable[str]) -> list[float]:
        """Seconds between the tokens of requests."""
        return [
            later - sooner
            for each in ids
            for sooner, later in zip(self.times[each], self.times[each][1:], strict=False)
        ]


@dataclass
class _Bench:
    """Runs requests on one engine."""

    engine: Engine
    args: argparse.Namespace
    num_added: int = 0
    num_schemas: int = 0

    def warm_up(self) -> None:
        """What is done once: the back end is built, pages are touched."""
        work = jobs(self.args, self.engine.info.vocab_size, salt=-1)
        self._drain(_Watch(), [self._add(job, person(-1), seed=i) for i, job in enumerate(work[:2])])
        self._drain(_Watch(), [self._add(job) for job in work])

    def throughput(self) -> dict[str, float]:
        """Of constrained requests over that of free ones of the same lengths."""
        constrained, free, num_tokens = [], [], 0
        for turn in range(self.args.repeats):
            work = jobs(self.args, self.engine.info.vocab_size, salt=turn)
            watch = _Watch()
            ids = [self._add(job, person(0), seed=i) for i, job in enumerate(work)]
            constrained.append(self._drain(watch, ids))
            lengths = [len(watch.times[each]) for each in ids]
            again = jobs(self.args, self.engine.info.vocab_size, salt=turn + self.args.repeats)
            ids = [self._add(Job(job.prompt, n), seed=i) for i, (job, n) in enumerate(zip(again, lengths, strict=True))]
            free.append(self._drain(_Watch(), ids))
            num_tokens = sum(lengths)
        return {
            "output_tokens": num_tokens,
            "constrained_s": percentile(constrained, 0.5),
            "free_s": percentile(free, 0.5),
            "share_of_free": percentile(free, 0.5) / percentile(constrained, 0.5),
        }

    def first_tokens(self) -> dict[str, float]:
        """Milliseconds until the first token of a lone request, whose schema nobody has seen or which has none."""
        found: dict[str, list[float]] = {"new_schema": [], "no_schema": []}
        for turn in range(4 * self.args.repeats):
            self.num_schemas += 1
            asks = {"new_schema": person(self.num_schemas), "no_schema": None}
            for name, asked in asks.items():
                found[name].append(1e3 * self._drain(_Watch(), [self._add(self._short(turn), asked)]))
        figures = {f"first_token_{name}_ms": percentile(values, 0.5) for name, values in found.items()}
        return {**figures, "schema_adds_ms": figures["first_token_new_schema_ms"] - figures["first_token_no_schema_ms"]}

    def beside(self) -> dict[str, float]:
        """Milliseconds between tokens of free streams, alone and beside hostile constraints."""
        makers: dict[str, Callable[[int], Sequence[Structured]]] = {
            "alone": lambda count: [],
            "beside_hostile": self._hostile,
        }
        turns: dict[str, list[list[float]]] = {name: [] for name in makers}
        num_sent = num_refused = 0
        for _ in range(self.args.repeats):
            for name, make in makers.items():
                watch, streams, others = self._streams(make)
                turns[name].append([1e3 * gap for gap in watch.gaps(streams)])
                num_sent, num_refused = num_sent + others, num_refused + len(watch.failed)
        figures: dict[str, float] = {"hostile_sent": num_sent, "hostile_refused": num_refused}
        for name, all_gaps in turns.items():
            spreads = [spread(name, gaps, "ms") for gaps in all_gaps]
            figures |= {key: percentile([each[key] for each in spreads], 0.5) for key in spreads[0]}
            figures[f"{name}_max_ms"] = max(map(max, all_gaps))
        return {**figures, "p99_over_alone": figures["beside_hostile_p99_ms"] / figures["alone_p99_ms"]}

    def _hostile(self, count: int) -> list[Structured]:
        self.num_schemas += count
        return volley(self.num_schemas - count, count)

    def _streams(self, make: Callable[[int], Sequence[Structured]]) -> tuple[_Watch, list[str], int]:
        """Run the streams while others are in flight: what came, the ids of the streams, how many others."""
        watch, num_sent = _Watch(), 0
        ids = [self._add(Job(self._short(i).prompt, self.args.stream_len)) for i in range(self.args.streams)]
        streams, others, due = set(ids), set[str](), time.perf_counter() + 0.1 * self.args.every
        while streams:
            if time.perf_counter() >= due:
                due += self.args.every
                new = [
                    self._add(self._short(i), asked) for i, asked in enumerate(make(self.args.hostile - len(others)))
                ]
                others.update(new)
                num_sent += len(new)
            ended = self._step(watch)
            streams, others = streams - ended, others - ended
        self._drain(watch, ids)
        return watch, ids, num_sent

    def _short(self, salt: int) -> Job:
        rng, high = random.Random(f"{salt}/{self.num_added}"), self.engine.info.vocab_size - 1
        return Job(tuple(rng.randint(min(10, high), high) for _ in range(8)), 1)

    def _add(self, job: Job, asked: Structured | None = None, seed: int = 0) -> str:
        """Add a request; free ones go on to their length, the others end where their form does."""
        self.num_added += 1
        params = SamplingParams(
            seed=seed,
            max_tokens=job.output_len,
            ignore_eos=asked is None,
            detokenize=False,
            structured=asked,
        )
        request = Request(id=f"r{self.num_added}", prompt=Prompt(token_ids=job.prompt), params=params)
        self.engine.add(request)
        return request.id

    def _step(self, watch: _Watch) -> set[str]:
        """Step once and note what came; the requests that ended."""
        deltas, ended = self.engine.step(), set()
        now = time.perf_counter()
        for delta in deltas:
            watch.times.setdefault(delta.request_id, []).extend([now] * len(delta.token_ids))
            if delta.error is not None:
                watch.failed[delta.request_id] = delta.error[1]
            if delta.finish_reason is not None:
                ended.add(delta.request_id)
        return ended

    def _drain(self, watch: _Watch, ids: Sequence[str]) -> float:
        """Seconds until nothing is left to do. Raises StartupError if one of these requests failed."""
        start = time.perf_counter()
        while self.engine.has_work:
            self._step(watch)
        reason = next((watch.failed[each] for each in ids if each in watch.failed), None)
        if reason is not None:
            raise StartupError(f"{self.engine.info.name} cannot be measured: {reason}")
        return time.perf_counter() - start
