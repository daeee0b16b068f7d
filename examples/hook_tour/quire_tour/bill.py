"""Adds up what each tenant owes, in a file of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.plugin import Option, hookimpl

if TYPE_CHECKING:
    from quire.plugin import UsageRecord


@hookimpl
def quire_options() -> Iterable[Option]:
    """The file and the prices."""
    yield Option("path", str, "bill.json", "file with what each tenant owes")
    yield Option("input_price", float, 0.1, "price of a million tokens of prompts that had to be computed")
    yield Option("output_price", float, 0.4, "price of a million tokens of answers")


@hookimpl
def quire_usage_recorded(records: Sequence[UsageRecord], options: Mapping[str, Any]) -> None:
    """Add the price of each request. Quire calls this from one thread, so additions do not mix."""
    file = Path(options["path"])
    owed: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    for record in records:
        computed = record.input_tokens - record.cached_tokens
        price = computed * options["input_price"] + record.output_tokens * options["output_price"]
        owed[record.tenant] = owed.get(record.tenant, 0.0) + price / 1e6
    file.write_text(json.dumps(owed))
