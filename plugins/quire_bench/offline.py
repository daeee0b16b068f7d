"""`bench throughput` and `bench latency`: the engine in this process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import UnknownArchitecture
from quire.hooks.plugins_off import with_advice
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.settings.options import add_config
from quire.settings.residency_config import RESIDENCY_SETTINGS
from quire.types import Prompt, Request
from quire_bench.report import show, spread
from quire_bench.workload import BenchRequest, add_workload_flags, at_least, jobs

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for the model and its settings."""
    parser.add_argument(
        "models_given", nargs="?", metavar="MODEL", help="folder, hub id or demo (default: the first demo)"
    )
    add_config(parser, ModelConfig, skip=RESIDENCY_SETTINGS)


def configure_throughput(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="32:128")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="number of runs; the median is reported")
    add_model_flags(parser)


def configure_latency(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=1, input_len="64", output_len="128")
    parser.add_argument("--num-iters-warmup", type=at_least(0), default=2, help="number of runs before the measurement")
    parser.add_argument("--num-iters", type=at_least(1), default=10, help="number of runs to measure")
    add_model_flags(parser)


def config_of(args: argparse.Namespace) -> ModelConfig:
    """The settings of the model that the flags of `add_model_flags` describe. Raises ConfigError."""
    from quire.commands.models import chosen_models

    values = {**vars(args), "models_given": [args.models_given] if args.models_given else []}
    return chosen_models(values, args.registry, max_models=1)[0]


def engine_of(args: argparse.Namespace) -> Engine:
    """Builds the engine that the flags of `add_model_flags` describe. Raises StartupError."""
    from quire.engine.build import build_engine
    from quire.engine_process.engine_builder import tokenizer_of

    config = config_of(args)
    try:
        return build_engine(config, args.registry, tokenizer=lambda: tokenizer_of(config))
    except UnknownArchitecture as error:
        raise with_advice(error, args.registry) from error


@dataclass
class _Run:
    """One run of a workload: seconds, steps, and usage of pages."""

    elapsed_s: float = 0.0
    first_token_s: float = 0.0
    num_steps: int = 0
    slots: int = 0
    slots_used: int = 0
    peak_pages: int = 0

    @property
    def waste(self) -> float:
        """Allocated but unused token positions over allocated ones, over all steps."""
        return 1 - self.slots_used / self.slots if self.slots else 0.0


def submit(engine: Engine, work: Sequence[BenchRequest], tag: str) -> None:
    """Adds every job at once. Raises BadRequest if one can never fit."""
    for number, job in enumerate(work):
        params = SamplingParams(temperature=0, max_tokens=job.output_len, ignore_eos=True, detokenize=False)
        engine.add(Request(id=f"{tag}-{number}", prompt=Prompt(token_ids=job.prompt), params=params))


def run_jobs(engine: Engine, work: Sequence[BenchRequest], tag: str) -> _Run:
    """Adds every job at once and steps until all are done."""
    run, page_size = _Run(), engine.info.page_size
    start = time.perf_counter()
    submit(engine, work, tag)
    while engine.has_work:
        deltas = engine.step()
        if deltas and not run.first_token_s:
            run.first_token_s = time.perf_counter() - start
        stats = engine.stats()
        run.num_steps += 1
        run.slots += stats.num_pages_used * page_size
        run.slots_used += stats.num_slots_used
        run.peak_pages = max(run.peak_pages, stats.num_pages_used)
    run.elapsed_s = time.perf_counter() - start
    return run


def run_throughput(args: argparse.Namespace) -> int:
    """Prints requests and tokens per second when all requests are submitted at once."""
    engine = engine_of(args)
    run_jobs(engine, jobs(args, engine.info.vocab_size, salt=-1)[:2], "warmup")
    runs = []
    for repeat in range(args.repeats):
        work = jobs(args, engine.info.vocab_size, salt=repeat)
        runs.append(run_jobs(engine, work, f"r{repeat}"))
    median = sorted(runs, key=lambda run: run.elapsed_s)[len(runs) // 2]
    prompt_tokens, output_tokens = sum(len(j.prompt) for j in work), sum(j.output_len for j in work)
    figures: dict[str, Any] = {
        "model": engine.info.name,
        "requests": len(work),
        "elapsed_s": median.elapsed_s,
        "requests_per_s": len(work) / median.elapsed_s,
        "prompt_tokens_per_s": prompt_tokens / median.elapsed_s,
        "output_tokens_per_s": output_tokens / median.elapsed_s,
        "steps": median.num_steps,
        "step_mean_ms": 1e3 * median.elapsed_s / median.num_steps,
        "peak_pages": median.peak_pages,
        "kv_waste_percent": 100 * median.waste,
        "elapsed_all_s": [round(run.elapsed_s, 3) for run in runs],
    }
    show("throughput", figures, args.output_json)
    engine.close()
    return 0


def run_latency(args: argparse.Namespace) -> int:
    """Prints seconds per batch, to the first token and to the last."""
    engine = engine_of(args)
    runs = []
    for repeat in range(args.num_iters_warmup + args.num_iters):
        work = jobs(args, engine.info.vocab_size, salt=repeat)
        runs.append(run_jobs(engine, work, f"r{repeat}"))
    measured = runs[args.num_iters_warmup :]
    after_first = [(run.elapsed_s - run.first_token_s) / max(run.num_steps - 1, 1) for run in measured]
    figures: dict[str, Any] = {
        "model": engine.info.name,
        "batch": len(work),
        **spread("latency", [run.elapsed_s for run in measured], "s"),
        **spread("first_token", [1e3 * run.first_token_s for run in measured], "ms"),
        **spread("per_step", [1e3 * seconds for seconds in after_first], "ms"),
    }
    show("latency", figures, args.output_json)
    engine.close()
    return 0
