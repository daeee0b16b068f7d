"""`bench structured`: the cost of constraints for the requests that use them and for other requests.

Three measurements, each in alternation: throughput of constrained requests relative to unconstrained ones of equal
length; the time that a new schema adds to the first token; and the time between tokens of unconstrained streams while
adversarial constraints are compiled. The step loop runs as in the engine process.
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

from quire.errors import StartupError
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.types import Prompt, Request
from quire_bench.adversarial import adversarial_batch
from quire_bench.offline import add_model_flags, engine_of
from quire_bench.report import percentile, show, spread
from quire_bench.workload import BenchRequest, add_workload_flags, at_least, jobs, positive

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="128")
    parser.add_argument(
        "--repeats", type=at_least(1), default=5, help="number of runs of each kind; the medians are reported"
    )
    parser.add_argument("--streams", type=at_least(1), default=8, help="number of unconstrained streams to observe")
    parser.add_argument("--stream-len", type=at_least(2), default=500, help="number of tokens per stream")
    parser.add_argument("--hostile", type=at_least(1), default=20, help="number of adversarial constraints in flight")
    parser.add_argument(
        "--every", type=positive, default=1.0, help="seconds after which ended adversarial requests are replaced"
    )
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the three measurements in this order. Raises StartupError for a model without structured output."""
    from quire.engine_process.process import SWITCH_INTERVAL_S

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with closing(engine_of(args)) as engine:
        bench = _StructuredBench(engine, args)
        bench.warm_up()
        figures = {"model": engine.info.name, **bench.throughput(), **bench.first_tokens(), **bench.beside()}
    show("structured", figures, args.output_json)
    return 0


def person(number: int) -> StructuredSpec:
    """A typical schema; a different one for every number."""
    properties = {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 6},
        f"kind_{number}": {"enum": ["a", "b", "c"]},
    }
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return StructuredSpec(kind="json_schema", source=json.dumps(schema), any_whitespace=False)


@dataclass
class _Watch:
    """Arrival times of the tokens of each request in seconds, and errors of failed requests."""

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
class _StructuredBench:
    """Runs requests on one engine."""

    engine: Engine
    args: argparse.Namespace
    num_added: int = 0
    num_schemas: int = 0

    def warm_up(self) -> None:
        """Builds the back end and touches pages."""
        work = jobs(self.args, self.engine.info.vocab_size, salt=-1)
        self._drain(_Watch(), [self._add(job, person(-1), seed=i) for i, job in enumerate(work[:2])])
        self._drain(_Watch(), [self._add(job) for job in work])

    def throughput(self) -> dict[str, float]:
        """Throughput of constrained requests relative to unconstrained ones of the same lengths."""
        constrained, free, num_tokens = [], [], 0
        for turn in range(self.args.repeats):
            work = jobs(self.args, self.engine.info.vocab_size, salt=turn)
            watch = _Watch()
            ids = [self._add(job, person(0), seed=i) for i, job in enumerate(work)]
            constrained.append(self._drain(watch, ids))
            lengths = [len(watch.times[each]) for each in ids]
            again = jobs(self.args, self.engine.info.vocab_size, salt=turn + self.args.repeats)
            ids = [
                self._add(BenchRequest(job.prompt, n), seed=i)
                for i, (job, n) in enumerate(zip(again, lengths, strict=True))
            ]
            free.append(self._drain(_Watch(), ids))
            num_tokens = sum(lengths)
        return {
            "output_tokens": num_tokens,
            "constrained_s": percentile(constrained, 0.5),
            "free_s": percentile(free, 0.5),
            "share_of_free": percentile(free, 0.5) / percentile(constrained, 0.5),
        }

    def first_tokens(self) -> dict[str, float]:
        """Milliseconds until the first token of a single request, with a new schema or with none."""
        found: dict[str, list[float]] = {"new_schema": [], "no_schema": []}
        for turn in range(4 * self.args.repeats):
            self.num_schemas += 1
            asks = {"new_schema": person(self.num_schemas), "no_schema": None}
            for name, asked in asks.items():
                found[name].append(1e3 * self._drain(_Watch(), [self._add(self._short(turn), asked)]))
        figures = {f"first_token_{name}_ms": percentile(values, 0.5) for name, values in found.items()}
        return {**figures, "schema_adds_ms": figures["first_token_new_schema_ms"] - figures["first_token_no_schema_ms"]}

    def beside(self) -> dict[str, float]:
        """Milliseconds between tokens of unconstrained streams, alone and during adversarial constraints."""
        makers: dict[str, Callable[[int], Sequence[StructuredSpec]]] = {
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

    def _hostile(self, count: int) -> list[StructuredSpec]:
        self.num_schemas += count
        return adversarial_batch(self.num_schemas - count, count)

    def _streams(self, make: Callable[[int], Sequence[StructuredSpec]]) -> tuple[_Watch, list[str], int]:
        """Runs the streams together with other requests; returns the record, the ids of the streams, and the number of
        others.
        """
        watch, num_sent = _Watch(), 0
        ids = [self._add(BenchRequest(self._short(i).prompt, self.args.stream_len)) for i in range(self.args.streams)]
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

    def _short(self, salt: int) -> BenchRequest:
        rng, high = random.Random(f"{salt}/{self.num_added}"), self.engine.info.vocab_size - 1
        return BenchRequest(tuple(rng.randint(min(10, high), high) for _ in range(8)), 1)

    def _add(self, job: BenchRequest, asked: StructuredSpec | None = None, seed: int = 0) -> str:
        """Adds a request; unconstrained ones run to their length, the others to the end of their constraint."""
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
        """Runs one step and records it; returns the requests that ended."""
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
        """Steps until nothing is left and returns seconds. Raises StartupError if one of these requests failed."""
        start = time.perf_counter()
        while self.engine.has_work:
            self._step(watch)
        reason = next((watch.failed[each] for each in ids if each in watch.failed), None)
        if reason is not None:
            raise StartupError(f"{self.engine.info.name} cannot be measured: {reason}")
        return time.perf_counter() - start
