"""Queries of usage: what `GET /v1/usage` asks for, as SQL, and its answer as JSON or CSV. Nothing here reads a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from quire.errors import BadRequest
from quire.server.accounting.opening import DAY, KEYS, SINGLE
from quire.types.usage import AMOUNTS

WIDTHS: Mapping[str, int | None] = {"1m": 60, "1h": 3600, "1d": 86_400, "all": None}
DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET = 1000, 10_000, 10_000_000

NAMES: Mapping[str, str] = {
    "num_requests": "num_model_requests",
    "input_tokens": "input_tokens",
    "cached_tokens": "input_cached_tokens",
    "output_tokens": "output_tokens",
    "drafted_tokens": "drafted_tokens",
    "accepted_tokens": "accepted_draft_tokens",
    "device_s": "device_seconds",
    "media_items": "media_items",
    "media_bytes": "media_bytes",
    "audio_s": "audio_seconds",
}
"""Names of the amounts in answers: those of OpenAI's usage API where it has them."""

PARAMS = frozenset(
    {"from", "start_time", "to", "end_time", *KEYS, "group_by", "bucket_width", "format", "limit", "page"}
)


@dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Which usage is summed how. start, end: Unix times, the end exclusive. filters: allowed values by key.

    width_s: of a bucket; None = one bucket for all. offset: rows of earlier pages.
    """

    start: float | None = None
    end: float | None = None
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    width_s: int | None = 86_400
    limit: int = DEFAULT_LIMIT
    offset: int = 0

    def sql(self) -> tuple[str, list[Any]]:
        """The statement and its values. It returns one row more than the limit if there are more."""
        where, values = ["kind IN (?, ?)"], list[Any]((SINGLE, DAY))
        for operator, bound in ((">=", self.start), ("<", self.end)):
            if bound is not None:
                where.append(f"ended {operator} ?")
                values.append(bound)
        for key, allowed in self.filters.items():
            where.append(f"{key} IN ({', '.join('?' * len(allowed))})")
            values += allowed
        begin = "min(ended)" if self.width_s is None else f"CAST(ended / {self.width_s} AS INTEGER) * {self.width_s}"
        keys = [*([] if self.width_s is None else ["begin"]), *self.group_by]
        grouped = f" GROUP BY {', '.join(keys)} ORDER BY {', '.join(keys)}" if keys else " HAVING count(*) > 0"
        columns = ", ".join([f"{begin} AS begin", *self.group_by, *(f"sum({name})" for name in AMOUNTS)])
        text = f"SELECT {columns} FROM usage WHERE {' AND '.join(where)}{grouped} LIMIT ? OFFSET ?"
        return text, [*values, self.limit + 1, self.offset]

    def answer(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The body of the answer to rows of `sql`: buckets as in OpenAI's usage API."""
        shown = rows[: self.limit]
        buckets = []
        for begin, of_bucket in groupby(shown, key=lambda row: row[0]):
            results = [{"object": "usage.result", **self._named(row)} for row in of_bucket]
            buckets.append({"object": "bucket", **self._times(begin), "results": results})
        more = len(rows) > self.limit
        next_page = str(self.offset + self.limit) if more else None
        return {"object": "page", "data": buckets, "has_more": more, "next_page": next_page}

    def csv(self, rows: Sequence[Sequence[Any]]) -> str:
        """The answer as a table, with a line for each row of `sql`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["start_time", "end_time", *self.group_by, *NAMES.values()])
        for row in rows[: self.limit]:
            writer.writerow([*self._times(row[0]).values(), *map(_cell, self._named(row).values())])
        return text.getvalue()

    def _named(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((*self.group_by, *NAMES.values()), row[1:], strict=True))

    def _times(self, begin: float) -> dict[str, int | None]:
        if self.width_s is not None:
            return {"start_time": int(begin), "end_time": int(begin) + self.width_s}
        end = None if self.end is None else math.ceil(self.end)
        return {"start_time": math.floor(begin if self.start is None else self.start), "end_time": end}


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def read_query(given: Sequence[tuple[str, str]]) -> tuple[UsageQuery, str]:
    """The query and the format that the parameters of a URL ask for. Raises `BadRequest`, which names the parameter."""
    values: dict[str, list[str]] = {}
    for name, value in given:
        values.setdefault(name.removesuffix("[]"), []).append(value)
    if unknown := sorted(values.keys() - PARAMS):
        raise BadRequest(
            f"Usage cannot be asked by `{unknown[0]:.40}`; known: {', '.join(sorted(PARAMS))}.", unknown[0]
        )
    width = one_of(values, "bucket_width", WIDTHS, "1d")
    groups = tuple(dict.fromkeys(part for value in values.get("group_by", ()) for part in value.split(",") if part))
    for group in groups:
        if group not in KEYS:
            raise BadRequest(f"`group_by` must be of {', '.join(KEYS)}; got {group!r:.40}.", "group_by")
    query = UsageQuery(
        start=time_of(values, "from", "start_time"),
        end=time_of(values, "to", "end_time"),
        filters={key: values[key][:100] for key in KEYS if key in values},
        group_by=groups,
        width_s=WIDTHS[width],
        limit=whole(values, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
        offset=whole(values, "page", 0, 0, MAX_OFFSET),
    )
    return query, one_of(values, "format", ("json", "csv"), "json")


def one_of(values: Mapping[str, Sequence[str]], name: str, choices: Collection[str], default: str) -> str:
    """The last value of a parameter. Raises `BadRequest` unless it is one of the choices."""
    value = values[name][-1] if name in values else default
    if value not in choices:
        raise BadRequest(f"`{name}` must be one of {', '.join(choices)}; got {value!r:.40}.", name)
    return value


def whole(values: Mapping[str, Sequence[str]], name: str, default: int, low: int, high: int) -> int:
    """A parameter that is a whole number. Raises `BadRequest` unless it is from `low` to `high`."""
    text = values[name][-1] if name in values else str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise BadRequest(f"`{name}` must be a whole number from {low} to {high}; got {text!r:.40}.", name)
    return int(text)


def time_of(values: Mapping[str, Sequence[str]], *names: str) -> float | None:
    """A parameter that is a time, under any of its names: Unix seconds or ISO 8601, in UTC if it names no zone."""
    name = next((name for name in names if name in values), None)
    if name is None:
        return None
    text = values[name][-1]
    try:
        number = float(text)
        if math.isfinite(number):
            return number
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        example = "1767225600 or 2026-01-01T00:00:00Z"
        raise BadRequest(f"`{name}` must be a time such as {example}; got {text!r:.40}.", name) from None
