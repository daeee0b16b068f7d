"""Counts calls into plugin code, by plugin, and turns its exceptions into ours.

It knows nothing of what is called. Safe to use from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from quire.errors import PluginFailed, QuireError
from quire.records import Registry


@dataclass(slots=True)
class _Tally:
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class CallCounter:
    """Calls, errors and seconds per plugin, since it was made (a `records.CountsCalls`)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tallies: dict[str, _Tally] = {}

    def call(self, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` gives.

        A `QuireError` is the plugin's considered answer (a grammar is wrong, an adapter does not
        fit) and passes as it is, uncounted; any other exception is a fault: counted, and raised on
        as `PluginFailed` naming the plugin, with the original as its cause.
        """
        failed = False
        begin = time.perf_counter()
        try:
            return function(*args)
        except (QuireError, KeyboardInterrupt):
            raise
        except BaseException as error:  # one that asks the process to exit is a fault like any other
            failed = True
            raise PluginFailed(f"Plugin {plugin!r} failed: {type(error).__name__}: {error}") from error
        finally:
            self._add(plugin, failed, time.perf_counter() - begin)

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors and seconds, by plugin name."""
        with self._lock:
            return [
                {"plugin": name, "calls": t.calls, "errors": t.errors, "seconds": round(t.seconds, 6)}
                for name, t in sorted(self._tallies.items())
            ]

    def _add(self, plugin: str, failed: bool, seconds: float) -> None:
        with self._lock:
            tally = self._tallies.setdefault(plugin, _Tally())
            tally.calls += 1
            tally.errors += failed
            tally.seconds += seconds


def call_plugin(registry: Registry, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
    """`registry.counter.call`, also for a registry made by hand that counts nothing."""
    counter = registry.counter if registry.counter is not None else CallCounter()
    return counter.call(plugin, function, *args)
