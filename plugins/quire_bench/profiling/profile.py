"""`bench profile`: where the time of a workload goes, in this process, compared with the roofline of the machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire_bench.offline import add_model_flags, engine_of, submit
from quire_bench.profiling import tables
from quire_bench.profiling.device_roofline import DeviceRoofline
from quire_bench.profiling.op_times import OpTime, times_of_model, times_of_torch
from quire_bench.profiling.roofline import Geometry, ideal_steps
from quire_bench.profiling.step_profiler import ProfiledRun, watch_jobs
from quire_bench.report import write_json
from quire_bench.workload import BenchRequest, add_workload_flags, at_least, jobs, positive

if TYPE_CHECKING:
    from quire.engine.engine import Engine


def configure(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="32:128")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="number of runs; the median run is shown")
    parser.add_argument("--top", type=at_least(1), default=15, help="number of operations to show")
    parser.add_argument("--read-gb-s", type=positive, default=None, help="memory bandwidth in GB/s (default: measured)")
    parser.add_argument(
        "--peak-gflop-s", type=positive, default=None, help="peak compute in GFLOP/s (default: measured)"
    )
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the workload several times with the step profiler, once with each operation profiler, and prints the
    results.
    """
    with closing(engine_of(args)) as engine:
        bench = _ProfileBench(engine, args)
        machine = bench.machine()
        bench.watch(salt=-1, count=2)
        runs = sorted((bench.watch(salt) for salt in range(args.repeats)), key=lambda run: run.elapsed_s)
        # measured again, close to the runs: the bandwidth of a shared machine changes within minutes
        machine = machine.best(bench.machine())
        by_torch, under_torch_s = bench.torch_ops(salt=args.repeats)
        by_model = bench.model_ops(salt=args.repeats + 1)
        run = runs[(len(runs) - 1) // 2]
        figures = bench.figures(run, runs)
        phases, sizes = tables.phases(run), tables.sizes(run, bench.geometry, machine)
        roof = tables.roof(run, bench.geometry, machine, bench.ideal())
    tables.show(figures, phases, sizes, roof)
    if by_model is not None:
        tables.show_ops("operations, as the model tells", by_model, args.top, machine)
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
class _ProfileBench:
    """One engine and the workload of the flags. Every run has its own salt and ids: no cached page is used."""

    engine: Engine
    args: argparse.Namespace

    @property
    def geometry(self) -> Geometry:
        return Geometry.from_model(self.engine.loaded)

    def machine(self) -> DeviceRoofline:
        """The machine's figures from the flags; missing ones are measured now."""
        said, peak = self.args.read_gb_s, self.args.peak_gflop_s
        if said is not None and peak is not None:
            return DeviceRoofline(1e9 * said, 1e9 * peak)
        found = DeviceRoofline.measure(self.engine.loaded.device, self.engine.loaded.dtype)
        return DeviceRoofline(
            found.read_bytes_per_s if said is None else 1e9 * said, found.flops_per_s if peak is None else 1e9 * peak
        )

    def work(self, salt: int) -> list[BenchRequest]:
        return jobs(self.args, self.engine.info.vocab_size, salt)

    def ideal(self) -> list[Any]:
        shared = self.args.prefix_len if self.args.enable_prefix_caching else 0
        return ideal_steps(self.work(0), shared)

    def watch(self, salt: int, count: int | None = None) -> ProfiledRun:
        """Runs the first `count` jobs (None = all) with the step profiler."""
        work = self.work(salt)[:count]
        return watch_jobs(self.engine, lambda: submit(self.engine, work, f"run{salt}"))

    def _plain(self, salt: int) -> None:
        submit(self.engine, self.work(salt), f"run{salt}")
        while self.engine.has_work:
            self.engine.step()

    def torch_ops(self, salt: int) -> tuple[list[OpTime], float]:
        """The torch operations of a run, and its seconds with the profiler."""
        return times_of_torch(self.engine.loaded.device, lambda: self._plain(salt))

    def model_ops(self, salt: int) -> list[OpTime] | None:
        return times_of_model(self.engine.loaded.module, lambda: self._plain(salt))

    def figures(self, run: ProfiledRun, runs: Sequence[ProfiledRun]) -> dict[str, Any]:
        """Description and duration of the runs."""
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
