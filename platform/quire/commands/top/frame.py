"""Draws one frame of `platform top`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quire.commands.top.figures import ModelFigures, ServerFigures

BAR = 10
"""Characters of the bar of the KV cache."""

MAX_ADAPTERS = 30
"""Rows of adapters: those with running requests first, then those with the most requests."""

ALMOST_FULL = 0.9


def frame(url: str, figures: ServerFigures) -> RenderableType:
    """The tables of models and adapters under a line about the server."""
    parts: list[RenderableType] = [_headline(url, figures), _models(figures)]
    if figures.adapters or any(figures.tiers.values()):
        where = ", ".join(f"{count:.0f} on {tier}" for tier, count in figures.tiers.items())
        parts += [Text(f"adapters: {where}" if where else "adapters"), _adapters(figures)]
    return Group(*parts)


def _headline(url: str, figures: ServerFigures) -> Text:
    words = [
        f"generating {figures.generation_rate:,.1f} tokens/s",
        f"prompts {figures.prompt_rate:,.1f} tokens/s",
        f"{figures.rejected:.0f} rejected",
    ]
    if figures.cpu is not None:
        words.append(f"API process: {figures.cpu:.2f} cores, {figures.memory_bytes / 2**20:,.0f} MiB")
    return Text.assemble((url, "bold"), "  ", "  ·  ".join(words))


def _models(figures: ServerFigures) -> Table:
    table = _table(
        "model", "run", "wait", "gen tok/s", "prompt tok/s", "KV cache", "hits", "drafts", "TTFT", "ITL", "done", "err"
    )
    for model in figures.models:
        table.add_row(
            Text(model.name),
            f"{model.running:.0f}",
            Text(f"{model.waiting:.0f}", "yellow" if model.waiting else ""),
            f"{model.generation_rate:,.1f}",
            f"{model.prompt_rate:,.1f}",
            _bar(model),
            _percent(model.hit_rate),
            _percent(model.draft_acceptance),
            _milliseconds(model.first_token_s),
            _milliseconds(model.per_token_s),
            f"{model.ended:,.0f}",
            Text(f"{model.failed:,.0f}", "red" if model.failed else ""),
        )
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _adapters(figures: ServerFigures) -> Table:
    table = _table("adapter", "of model", "run", "gen tok/s", "done", "")
    rows = sorted(figures.adapters, key=lambda row: (-row.running, not row.waits, -row.ended, row.name))
    for row in rows[:MAX_ADAPTERS]:
        waits = Text("waits for a slot", "yellow") if row.waits else ""
        table.add_row(
            Text(row.name), Text(row.model), f"{row.running:.0f}", f"{row.rate:,.1f}", f"{row.ended:,.0f}", waits
        )
    if len(rows) > MAX_ADAPTERS:
        table.add_row(f"and {len(rows) - MAX_ADAPTERS} more")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in columns:
        is_text = name in ("model", "adapter", "of model", "KV cache", "")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table


def _bar(model: ModelFigures) -> Text:
    filled = min(BAR, round(BAR * model.kv_usage))
    style = "red" if model.kv_usage >= ALMOST_FULL else "green"
    return Text.assemble(("━" * filled, style), ("─" * (BAR - filled), "dim"), f" {100 * model.kv_usage:3.0f} %")


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:,.0f} ms"
