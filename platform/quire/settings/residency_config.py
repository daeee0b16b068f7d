"""The settings that say when a model is in memory, and times as texts, such as 5m."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from typing import NewType

from quire.errors import ConfigError
from quire.settings.setting import setting

Seconds = NewType("Seconds", float)
"""A time in seconds, -1 for ever; a text has a unit or is a number, see `seconds`."""

FOREVER = Seconds(-1)
ON_DEMAND = "on-demand"

RESIDENCY_SETTINGS = ("load", "keep_alive", "pinned")
"""Names of these settings, which only a server has."""

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> Seconds:
    """Parse a time: 300, 90s, 5m, 1.5h, 1d, or forever (-1)."""
    words = text.strip().lower()
    if words in ("forever", "-1"):
        return FOREVER
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", words)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time (examples: 300, 90s, 5m, 1h, 0, forever)")
    return Seconds(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, kw_only=True)
class ResidencyConfig:
    """A base of `ModelConfig`: when a server loads and unloads the model."""

    load: str = setting(
        "When the server loads the model: at its start (startup), or when a request first asks for it (on-demand).",
        "startup",
        choices=("startup", ON_DEMAND),
    )
    keep_alive: Seconds = setting(  # noqa: RUF009  # a float, which cannot change
        "Time after its last request for which the model stays loaded, in seconds or with a unit, e.g. 5m; 0: it is "
        "unloaded as soon as it is idle; forever or -1: until memory is needed.",
        FOREVER,
    )
    pinned: bool = setting("Once loaded, the model is not unloaded for others.", False)

    @property
    def keep_alive_s(self) -> float:
        """`keep_alive` in seconds; infinite for ever."""
        return math.inf if self.keep_alive < 0 else float(self.keep_alive)

    def _check_residency(self) -> None:
        if not (self.keep_alive >= 0 or self.keep_alive == FOREVER):  # not a number, too
            raise ConfigError(f"--keep-alive must be at least 0 seconds, or -1 for ever; got {self.keep_alive}.")
        if self.pinned and self.keep_alive != FOREVER:
            raise ConfigError("--pinned keeps a model loaded; leave --keep-alive out.")
