"""`bench profile`: where the time of a workload goes, in this process, and how far it is from the machine's roof."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.commands.bench import profile_tables as tables
from quire.commands.bench.machine import Machine
from quire.commands.bench.offline import add_model_flags, engine_of, submit
from quire.commands.bench.ops import OpTime, times_of_model, times_of_torch
from quire.commands.bench.report import write_json
from quire.commands.bench.roof import Geometry, ideal_steps
from quire.commands.bench.steps import WatchedRun, watch_jobs
from quire.commands.bench.workload import Job, add_workload_flags, at_least, jobs, positive

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of `bench profile`."""
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="32:128")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs; the median one is shown")
    parser.add_argument("--top", type=at_least(1), default=15, help="operations shown")
    parser.add_argument("--read-gb-s", type=positive, default=None, help="read bandwidth in GB/s (default: measured)")
    parser.add_argument("--peak-gflop-s", type=positive, default=None, help="peak in GFLOP/s (default: measured)")
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the workload several times under the watch, once under each profiler, and print what was seen."""
    with closing(engine_of(args)) as engine:
        bench = _Bench(engine, args)
        machine = bench.machine()
        bench.watch(salt=-1, count=2)
        runs = sorted((bench.watch(salt) for salt in range(args.repeats)), key=lambda run: run.elapsed_s)
        # again, close to the runs: the bandwidth swings with the neighbours of the machine, within minutes
        machine = machine.best(bench.machine())
        by_torch, under_torch_s = bench.torch_ops(salt=args.repeats)
        by_model = bench.model_ops(salt=args.repeats + 1)
        run = runs[(len(runs) - 1) // 2]
        figures = bench.figures(run, runs)
        phases, sizes = tables.phases(run), tables.sizes(run, bench.geometry, machine)
        roof = tables.roof(run, bench.geometry, machine, bench.ideal())
    tables.show(figures, phases, sizes, roof)
    if by_model is not None:
        tables.show_ops("operations, as the model tells", by_model, args.top)
    in_ops_s = sum(op.seconds for op in by_torch)
    title = f"torch operations: {in_ops_s:.2f} s of a run of {under_torch_s:.2f} s under the profiler"
    tables.show_ops(title, by_torch, args.top)
    sections = {
        **figures,
        "phases": [row._asdict() for row in phases],
        "steps_by_size": [row._asdict() for row in sizes],
        "roof": roof,
        "model_ops": None if by_model is None else [op._asdict() for op in by_model],
        "torch_ops": [op._asdict() for op in by_torch],
        "under_torch_profiler_s": under_torch_s,
    }
    write_json("profile", sections, args.output_json)
    return 0


@dataclass(frozen=True)
class _Bench:
    """One engine and the workload of the flags. Every run has a salt and so ids of its own: no page is used again."""

    engine: Engine
    args: argparse.Namespace

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.engine.loaded)

    def machine(self) -> Machine:
        """What the flags say of the machine; what they leave open is measured now."""
        said, peak = self.args.read_gb_s, self.args.peak_gflop_s
        if said is not None and peak is not None:
            return Machine(1e9 * said, 1e9 * peak)
        found = Machine.measure(self.engine.loaded.device, self.engine.loaded.dtype)
        return Machine(
            found.read_bytes_per_s if said is None else 1e9 * said, found.flops_per_s if peak is None else 1e9 * peak
        )

    def work(self, salt: int) -> list[Job]:
        return jobs(self.args, self.engine.info.vocab_size, salt)

    def ideal(self) -> list[Any]:
        shared = self.args.prefix_len if self.args.enable_prefix_caching else 0
        return ideal_steps(self.work(0), shared)

    def watch(self, salt: int, count: int | None = None) -> WatchedRun:
        """A run of the first `count` jobs, None = all."""
        work = self.work(salt)[:count]
        return watch_jobs(self.engine, lambda: submit(self.engine, work, f"run{salt}"))

    def _plain(self, salt: int) -> None:
        submit(self.engine, self.work(salt), f"run{salt}")
        while self.engine.has_work:
            self.engine.step()

    def torch_ops(self, salt: int) -> tuple[list[OpTime], float]:
        """The torch operations of a run, and its seconds under the profiler."""
        return times_of_torch(self.engine.loaded.device, lambda: self._plain(salt))

    def model_ops(self, salt: int) -> list[OpTime] | None:
        return times_of_model(self.engine.loaded.module, lambda: self._plain(salt))

    def figures(self, run: WatchedRun, runs: Sequence[WatchedRun]) -> dict[str, Any]:
        """What was run and how long it took."""
        import torch

        info, work = self.engine.info, self.work(0)
        output_tokens = sum(job.output_len for job in work)
        return {
            "model": info.name,
            "dtype": info.dtype,
            "device": info.device,
            "threads": torch.get_num_threads(),
            "requests": len(work),
            "prompt_tokens": sum(len(job.prompt) for job in work),
            "output_tokens": output_tokens,
            "steps": len(run.computing),
            "elapsed_s": run.elapsed_s,
            "output_tokens_per_s": output_tokens / run.elapsed_s,
            "elapsed_all_s": [round(each.elapsed_s, 3) for each in runs],
        }
