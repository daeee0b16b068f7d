"""`bench embed`: prompts through a pooler of the engine, in this process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quire.params.pooling import POOLING_TASKS, PoolingParams
from quire.types import Prompt, Request
from quire_bench.offline import add_model_flags, engine_of
from quire_bench.report import show
from quire_bench.workload import BenchRequest, add_workload_flags, at_least, jobs

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=1000, input_len="8:128", output_len=None)
    parser.add_argument("--pooling-task", choices=POOLING_TASKS, default="embed", help="pooling task of the requests")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="number of runs; the median is reported")
    add_model_flags(parser)
    parser.set_defaults(max_num_queued_reqs=1 << 30)


def run(args: argparse.Namespace) -> int:
    """Prints prompts and tokens per second when all prompts are submitted at once."""
    engine, params = engine_of(args), PoolingParams(task=args.pooling_task)
    _pool(engine, jobs(args, engine.info.vocab_size, salt=-1)[:50], params, "warmup")
    runs = []
    for repeat in range(args.repeats):
        work = jobs(args, engine.info.vocab_size, salt=repeat)
        runs.append(_pool(engine, work, params, f"r{repeat}"))
    median = sorted(runs)[len(runs) // 2]
    figures: dict[str, Any] = {
        "model": engine.info.name,
        "requests": len(work),
        "elapsed_s": median,
        "requests_per_s": len(work) / median,
        "prompt_tokens_per_s": sum(len(job.prompt) for job in work) / median,
        "elapsed_all_s": [round(seconds, 3) for seconds in runs],
    }
    show("embed", figures, args.output_json)
    engine.close()
    return 0


def _pool(engine: Engine, work: Sequence[BenchRequest], params: PoolingParams, tag: str) -> float:
    """Seconds until every prompt is pooled."""
    start = time.perf_counter()
    for number, job in enumerate(work):
        engine.add(Request(id=f"{tag}-{number}", prompt=Prompt(token_ids=job.prompt), params=params))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start
