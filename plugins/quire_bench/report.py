"""Figures as tables on the terminal and as JSON in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; NaN for no values."""
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
    """Prints the figures, and writes them to the file of --output-json."""
    show_figures(title, figures)
    write_json(title, figures, output_json)


def show_figures(title: str, figures: Mapping[str, Any]) -> None:
    """Prints one figure per line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else f"{value}")
    Console().print(table)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table: words left-aligned, numbers right-aligned with about three digits, None as an empty cell."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return f"{value}"
    digits = next((digits for least, digits in ((100, 0), (10, 1), (1, 2)) if abs(value) >= least), 3)
    return f"{value:,.{digits}f}"


def write_json(title: str, figures: Mapping[str, Any], output_json: str | None) -> None:
    """Writes the figures to the file of --output-json; numbers that are not finite become null."""
    if output_json:
        Path(output_json).write_text(json.dumps(_finite({"title": title, **figures}), indent=1) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
