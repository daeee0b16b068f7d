"""Sends requests to an OpenAI-compatible server at given times, and records when their tokens arrive."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from quire.commands.remote import OpenAIServer, RemoteError
from quire_bench.report import spread
from quire_bench.workload import BenchRequest, add_workload_flags, at_least, jobs, positive


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the workload and of sending."""
    add_workload_flags(parser, num_prompts=64, input_len="32:256", output_len="32:128")
    burstiness = "burstiness of arrivals: 1 is a Poisson process, below 1 is burstier, above 1 is steadier"
    parser.add_argument("--burstiness", type=positive, default=1.0, help=burstiness)
    parser.add_argument(
        "--max-concurrency", type=at_least(1), default=None, help="maximum number of requests in flight"
    )
    parser.add_argument("--num-warmups", type=at_least(0), default=2, help="number of requests before the measurement")
    parser.add_argument(
        "--vocab-size", type=at_least(1), default=256, help="upper bound of the random token ids of prompts"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="sampling temperature; 0: greedy")


def add_rate_flag(parser: argparse.ArgumentParser) -> None:
    text = "request rate per second (inf: all at once)"
    parser.add_argument("--request-rate", type=positive, default=float("inf"), help=text)


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Start times in seconds; gaps are Gamma(burstiness) with mean 1 / rate."""
    if rate == float("inf"):
        return [0.0] * count
    rng, now, out = random.Random(seed), 0.0, []
    for _ in range(count):
        out.append(now)
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return out


@dataclass(frozen=True)
class LoadPattern:
    """Requests to one model, with start times in seconds.

    max_concurrency: maximum number of concurrent requests, None = no limit.
    """

    model: str
    work: Sequence[BenchRequest]
    starts: Sequence[float]
    temperature: float
    max_concurrency: int | None

    @classmethod
    def from_args(cls, args: argparse.Namespace, model: str, rate: float, salt: int) -> LoadPattern:
        """Reads the flags of `add_load_flags`; `rate` in requests per second (inf: all at once)."""
        work = jobs(args, args.vocab_size, salt)
        starts = arrivals(len(work), rate, args.burstiness, args.workload_seed)
        return cls(model, work, starts, args.temperature, args.max_concurrency)

    @classmethod
    def warmup(cls, args: argparse.Namespace, model: str) -> LoadPattern:
        """A few other requests, all at once."""
        whole = cls.from_args(args, model, float("inf"), salt=-1)
        return replace(whole, work=whole.work[: args.num_warmups], starts=whole.starts[: args.num_warmups])


@dataclass
class Trace:
    """Arrival times of the tokens of one request, in seconds after it was sent.

    num_tokens: as counted by the server; otherwise the number of chunks.
    """

    times: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds between the chunks of the response."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


@dataclass(frozen=True)
class Outcome:
    """Results of a load: traces in the order of the jobs.

    client_cpu_s: CPU seconds of this process for sending and receiving.
    """

    work: Sequence[BenchRequest]
    traces: Sequence[Trace]
    elapsed_s: float
    client_cpu_s: float

    @property
    def errors(self) -> list[str]:
        """Errors of the requests that failed."""
        return [trace.error for trace in self.traces if trace.error]

    def checked(self) -> Outcome:
        """Returns itself if every request returned all its tokens. Raises RemoteError otherwise."""
        if self.errors:
            raise RemoteError(f"{len(self.errors)} of {len(self.traces)} requests failed; the first: {self.errors[0]}")
        for job, trace in zip(self.work, self.traces, strict=True):
            if trace.num_tokens != job.output_len:
                raise RemoteError(
                    f"A request for exactly {job.output_len} tokens was answered with {trace.num_tokens}; "
                    "the server must know `ignore_eos` and have room for prompt and output in its context."
                )
        return self

    def figures(self) -> dict[str, Any]:
        """Throughput and latencies by name, with their unit in the name."""
        good = [trace for trace in self.traces if not trace.error and trace.times]
        tokens = sum(trace.num_tokens for trace in good)
        per_token = [1e3 * (t.times[-1] - t.times[0]) / (t.num_tokens - 1) for t in good if t.num_tokens > 1]
        return {
            "completed": len(good),
            "failed": len(self.traces) - len(good),
            "elapsed_s": self.elapsed_s,
            "requests_per_s": len(good) / self.elapsed_s,
            "output_tokens_per_s": tokens / self.elapsed_s,
            **spread("ttft", [1e3 * trace.times[0] for trace in good], "ms"),
            **spread("tpot", per_token, "ms"),
            **spread("itl", [1e3 * gap for trace in good for gap in trace.gaps], "ms"),
            **spread("e2e", [1e3 * trace.times[-1] for trace in good], "ms"),
            "client_cpu_percent": 100 * self.client_cpu_s / self.elapsed_s,
        }


async def _one(remote: OpenAIServer, http: httpx.AsyncClient, load: LoadPattern, job: BenchRequest) -> Trace:
    trace, start = Trace(), time.perf_counter()
    body = {
        "model": load.model,
        "prompt": list(job.prompt),
        "max_tokens": job.output_len,
        "temperature": load.temperature,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    counted: int | None = None
    try:
        async for chunk in remote.astream(http, "/completions", body):
            if chunk["choices"]:
                trace.times.append(time.perf_counter() - start)
            if chunk.get("usage"):
                counted = chunk["usage"]["completion_tokens"]
        trace.num_tokens = len(trace.times) if counted is None else counted
    except (RemoteError, httpx.HTTPError) as error:
        trace.error = str(error) or repr(error)
    except (ValueError, KeyError, TypeError) as error:
        trace.error = f"the answer is not a stream of completion chunks ({error!r})"
    return trace


async def _send(remote: OpenAIServer, load: LoadPattern) -> Outcome:
    gate = asyncio.Semaphore(load.max_concurrency or len(load.work) or 1)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=remote.timeout_s, limits=limits) as http:

        async def at(start_s: float, job: BenchRequest) -> Trace:
            await asyncio.sleep(start_s)
            async with gate:
                return await _one(remote, http, load, job)

        start, cpu = time.perf_counter(), time.process_time()
        traces = await asyncio.gather(*(at(t, job) for t, job in zip(load.starts, load.work, strict=True)))
        return Outcome(load.work, traces, time.perf_counter() - start, time.process_time() - cpu)


def send(remote: OpenAIServer, load: LoadPattern) -> Outcome:
    """Sends the load and waits for all responses; errors are in the traces."""
    return asyncio.run(_send(remote, load))
