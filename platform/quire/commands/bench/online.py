"""`bench serve`: load on any OpenAI-compatible server, with arrival times of a Poisson process."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from quire.commands.bench.report import show, spread
from quire.commands.bench.workload import Job, add_workload_flags, jobs
from quire.commands.remote import Remote, RemoteError, add_remote_flags


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of `bench serve`."""
    add_remote_flags(parser)
    add_workload_flags(parser, num_prompts=64, input_len="32:256", output_len="32:128")
    parser.add_argument(
        "--request-rate", type=float, default=float("inf"), help="requests per second (inf: all at once)"
    )
    parser.add_argument("--burstiness", type=float, default=1.0, help="1 = Poisson, below 1 burstier, above 1 steadier")
    parser.add_argument("--max-concurrency", type=int, default=None, help="most requests in flight")
    parser.add_argument("--num-warmups", type=int, default=2, help="requests before measuring")
    parser.add_argument("--vocab-size", type=int, default=256, help="token ids are drawn below this")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")


@dataclass
class Trace:
    """When the tokens of one request came, in seconds after it was sent."""

    times: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Start times in seconds; gaps are Gamma(burstiness) with mean 1 / rate."""
    if rate == float("inf"):
        return [0.0] * count
    rng, now, out = random.Random(seed), 0.0, []
    for _ in range(count):
        out.append(now)
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return out


async def _one(remote: Remote, http: httpx.AsyncClient, model: str, job: Job, temperature: float) -> Trace:
    trace, start = Trace(), time.perf_counter()
    body = {
        "model": model,
        "prompt": list(job.prompt),
        "max_tokens": job.output_len,
        "temperature": temperature,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async for chunk in remote.astream(http, "/completions", body):
            if chunk["choices"]:
                trace.times.append(time.perf_counter() - start)
            if chunk.get("usage"):
                trace.num_tokens = chunk["usage"]["completion_tokens"]
    except (RemoteError, httpx.HTTPError) as error:
        trace.error = str(error) or repr(error)
    return trace


async def _load(args: argparse.Namespace, model: str, work: Sequence[Job], rate: float) -> tuple[list[Trace], float]:
    remote = Remote.of(args)
    gate = asyncio.Semaphore(args.max_concurrency or len(work) or 1)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=remote.timeout_s, limits=limits) as http:

        async def at(start_s: float, job: Job) -> Trace:
            await asyncio.sleep(start_s)
            async with gate:
                return await _one(remote, http, model, job, args.temperature)

        start = time.perf_counter()
        times = arrivals(len(work), rate, args.burstiness, args.workload_seed)
        traces = await asyncio.gather(*(at(t, job) for t, job in zip(times, work, strict=True)))
        return list(traces), time.perf_counter() - start


def _figures(traces: Sequence[Trace], elapsed_s: float) -> dict[str, Any]:
    good = [trace for trace in traces if not trace.error and trace.times]
    tokens = sum(trace.num_tokens for trace in good)
    per_token = [1e3 * (t.times[-1] - t.times[0]) / (t.num_tokens - 1) for t in good if t.num_tokens > 1]
    return {
        "completed": len(good),
        "failed": len(traces) - len(good),
        "elapsed_s": elapsed_s,
        "requests_per_s": len(good) / elapsed_s,
        "output_tokens_per_s": tokens / elapsed_s,
        **spread("ttft", [1e3 * trace.times[0] for trace in good], "ms"),
        **spread("tpot", per_token, "ms"),
        **spread("itl", [1e3 * gap for trace in good for gap in trace.gaps], "ms"),
        **spread("e2e", [1e3 * trace.times[-1] for trace in good], "ms"),
    }


def run(args: argparse.Namespace) -> int:
    """Send the load and print latencies; the exit status is 1 if a request failed."""
    model = args.model_name or Remote.of(args).first_model()
    warmups = jobs(args, args.vocab_size, salt=-1)[: args.num_warmups]
    if warmups:
        asyncio.run(_load(args, model, warmups, float("inf")))
    traces, elapsed_s = asyncio.run(_load(args, model, jobs(args, args.vocab_size), args.request_rate))
    figures = {"model": model, "request_rate": args.request_rate, **_figures(traces, elapsed_s)}
    errors = [trace.error for trace in traces if trace.error]
    show("serve", {**figures, **({"first_error": errors[0]} if errors else {})}, args.output_json)
    return 1 if errors else 0
