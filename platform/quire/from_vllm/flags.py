"""Hidden flags for the arguments of `quire.from_vllm.arguments`: they are checked when parsed and not stored.

`--help` omits them; docs/from_vllm.md lists them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from quire.from_vllm.arguments import ARGUMENTS, check_argument


class _Value(argparse.Action):
    """A flag with a value, checked and dropped."""

    def __call__(self, parser: object, namespace: object, values: Any, option_string: str | None = None) -> None:
        check_argument(self.dest, _read(values))


class _Switch(argparse.BooleanOptionalAction):
    """A boolean flag, checked and dropped."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        check_argument(self.dest, not (option_string or "").startswith("--no-"))


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each argument. Parsing raises ConfigError for a value that asks for a missing feature."""
    for name, accepted in ARGUMENTS.items():
        action = _Switch if accepted.is_switch else _Value
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, action=action, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _read(text: str) -> Any:
    """The JSON value of a flag's text: 1 → 1, null or none → None, {} → {}; other text is returned as it is."""
    try:
        return json.loads("null" if text.lower() == "none" else text)
    except ValueError:
        return text
