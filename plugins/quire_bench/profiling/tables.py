"""The tables of `bench profile`: phases, steps by size, the roofline, operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from quire_bench.profiling.device_roofline import DeviceRoofline
from quire_bench.profiling.op_times import OpTime
from quire_bench.profiling.roofline import Geometry, OpCost, TokenSpan
from quire_bench.profiling.step_profiler import PHASES, ProfiledRun, TimedStep
from quire_bench.report import show_figures, show_table

BORDERS = (0, 1, 8, 32, 128, 512)
"""Upper limits of token counts; steps between two limits are shown together."""


class PhaseRow(NamedTuple):
    """One phase of the steps of a run; mean and median over the steps that computed tokens."""

    phase: str
    mean_ms: float | None
    median_ms: float | None
    total_s: float
    share_percent: float


class SizeRow(NamedTuple):
    """Steps of similar size. read_gb_s and gflop_s: least bytes and FLOPs over the measured time."""

    tokens: str
    steps: int
    mean_ms: float
    roof_mean_ms: float
    roof_share_percent: float
    read_gb_s: float
    gflop_s: float
    bound_by_reading: int


def phases(run: ProfiledRun) -> list[PhaseRow]:
    """Rows for every phase, for whole steps, and for the time between steps."""

    def row(name: str, each: list[float], total_s: float) -> PhaseRow:
        share = 100 * total_s / run.elapsed_s
        return PhaseRow(name, 1e3 * mean(each), 1e3 * median(each), total_s, share)

    rows = [
        row(phase, [step.seconds[phase] for step in run.computing], sum(step.seconds[phase] for step in run.steps))
        for phase in PHASES
    ]
    in_steps_s = sum(step.elapsed_s for step in run.steps)
    between_s = run.elapsed_s - in_steps_s
    whole = row("step", [step.elapsed_s for step in run.computing], in_steps_s)
    return [*rows, whole, PhaseRow("between steps", None, None, between_s, 100 * between_s / run.elapsed_s)]


def sizes(run: ProfiledRun, geometry: Geometry, machine: DeviceRoofline) -> list[SizeRow]:
    """Rows for steps by number of tokens, compared with the roofline."""
    rows = []
    for low, high in zip(BORDERS, (*BORDERS[1:], None), strict=True):
        some = [step for step in run.computing if step.num_tokens > low and (high is None or step.num_tokens <= high)]
        if some:
            rows.append(_size_row(_range(low + 1, high), some, geometry, machine))
    return rows


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} and more"
    return f"{low}" if low == high else f"{low} to {high}"


def _size_row(tokens: str, steps: Sequence[TimedStep], geometry: Geometry, machine: DeviceRoofline) -> SizeRow:
    costs = [geometry.cost(step.spans) for step in steps]
    roof_s, total_s = sum(map(machine.least_s, costs)), sum(step.elapsed_s for step in steps)
    return SizeRow(
        tokens=tokens,
        steps=len(steps),
        mean_ms=1e3 * total_s / len(steps),
        roof_mean_ms=1e3 * roof_s / len(steps),
        roof_share_percent=100 * roof_s / total_s,
        read_gb_s=sum(cost.bytes for cost in costs) / total_s / 1e9,
        gflop_s=sum(cost.flops for cost in costs) / total_s / 1e9,
        bound_by_reading=sum(map(machine.reads_longer, costs)),
    )


def roof(
    run: ProfiledRun, geometry: Geometry, machine: DeviceRoofline, ideal: Sequence[Sequence[TokenSpan]]
) -> dict[str, Any]:
    """Rows for the machine, the model, and the least time of the workload: with the fewest steps, and with the planned
    steps.
    """
    fewest, planned = map(geometry.cost, ideal), [geometry.cost(step.spans) for step in run.computing]
    fewest_s, planned_s = sum(map(machine.least_s, fewest)), sum(map(machine.least_s, planned))
    return {
        "read_gb_s": machine.read_bytes_per_s / 1e9,
        "peak_gflop_s": machine.flops_per_s / 1e9,
        "body_weights_mb": geometry.body * geometry.weight_bytes / 1e6,
        "head_weights_mb": geometry.head * geometry.weight_bytes / 1e6,
        "kv_bytes_per_token": geometry.kv_bytes_per_token,
        "roof_of_workload_steps": len(ideal),
        "roof_of_workload_s": fewest_s,
        "roof_of_workload_reached_percent": 100 * fewest_s / run.elapsed_s,
        "roof_of_planned_steps": len(planned),
        "roof_of_planned_steps_bound_by_reading": sum(map(machine.reads_longer, planned)),
        "roof_of_planned_read_gb": sum(cost.bytes for cost in planned) / 1e9,
        "roof_of_planned_gflop": sum(cost.flops for cost in planned) / 1e9,
        "roof_of_planned_s": planned_s,
        "roof_of_planned_reached_percent": 100 * planned_s / run.elapsed_s,
    }


def show(
    figures: Mapping[str, Any], phases: Sequence[PhaseRow], sizes: Sequence[SizeRow], roof: Mapping[str, Any]
) -> None:
    """Prints all tables except operations."""
    show_figures("run", figures)
    what = [(f"{row.phase}: {PHASES[row.phase]}" if row.phase in PHASES else row.phase, *row[1:]) for row in phases]
    show_table("one step, by phase", ("phase", "mean ms", "median ms", "total s", "share %"), what)
    columns = ("tokens of the step", "steps", "mean ms", "roof ms", "% of roof", "GB/s", "GFLOP/s", "bound by reading")
    show_table("steps, by their size", columns, sizes)
    show_figures("roof", roof)


def show_ops(title: str, ops: Sequence[OpTime], top: int, machine: DeviceRoofline | None = None) -> None:
    """Prints the longest operations with their share of all, and bytes and FLOPs where known.

    machine: shows what part of the time the operations would take at its roof. Operations on data that are still in the
    caches may exceed the bandwidth of the memory.
    """
    total_s = sum(op.seconds for op in ops) or 1.0
    rows = [
        [op.name, op.calls, op.seconds, 100 * op.seconds / total_s, 1e6 * op.seconds / max(op.calls, 1)]
        for op in ops[:top]
    ]
    columns = ["operation", "calls", "seconds", "share %", "µs a call"]
    if any(op.bytes is not None or op.flops is not None for op in ops):
        columns += ["GB/s", "GFLOP/s"]
        rows = [[*row, _rate(op.bytes, op), _rate(op.flops, op)] for row, op in zip(rows, ops, strict=False)]
        if machine is not None:
            columns.append("% of roof")
            rows = [[*row, _of_roof(op, machine)] for row, op in zip(rows, ops, strict=False)]
    show_table(title, columns, rows)


def _rate(amount: float | None, op: OpTime) -> float | None:
    """10⁹ per second; None where the amount is unknown."""
    return None if amount is None or not op.seconds else amount / op.seconds / 1e9


def _of_roof(op: OpTime, machine: DeviceRoofline) -> float | None:
    """Percent of its time that an operation would take at the roof; None where its amounts are unknown."""
    if op.bytes is None or not op.seconds:
        return None
    return 100 * machine.least_s(OpCost(op.flops or 0.0, op.bytes)) / op.seconds
