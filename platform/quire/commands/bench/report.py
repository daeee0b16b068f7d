"""Figures as a table on the terminal and as JSON in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(name: str, values: Sequence[float], unit: str) -> dict[str, float]:
    """Mean, median, 90th and 99th percentile under names such as `ttft_p50_ms`."""
    mean = sum(values) / len(values) if values else float("nan")
    points = {
        "mean": mean,
        "p50": percentile(values, 0.5),
        "p90": percentile(values, 0.9),
        "p99": percentile(values, 0.99),
    }
    return {f"{name}_{point}_{unit}": value for point, value in points.items()}


def show(title: str, figures: Mapping[str, Any], output_json: str | None) -> None:
    """Print the figures, and write them where asked."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else f"{value}")
    Console().print(table)
    if output_json:
        Path(output_json).write_text(json.dumps({"title": title, **figures}, indent=1) + "\n")
