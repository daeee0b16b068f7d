"""Flags for the arguments that are only vLLM's (`quire.from_vllm.arguments`): checked when parsed, kept nowhere.

They are left out of `--help`; docs/from_vllm.md lists them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from quire.from_vllm.arguments import ARGUMENTS, check


class _Value(argparse.Action):
    """A flag with a value."""

    def __call__(self, parser: object, namespace: object, values: Any, option_string: str | None = None) -> None:
        check(self.dest, _read(values))


class _Switch(argparse.BooleanOptionalAction):
    """A flag that is on or off."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        check(self.dest, not (option_string or "").startswith("--no-"))


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each of these arguments. Parsing raises ConfigError for one that asks for what is not there."""
    for name, accepted in ARGUMENTS.items():
        action = _Switch if accepted.is_switch else _Value
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, action=action, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _read(text: str) -> Any:
    """1 → 1, null or none → None, {} → {}, what is no JSON → the text."""
    try:
        return json.loads("null" if text.lower() == "none" else text)
    except ValueError:
        return text
