"""Requests and tokens of each client, for the live view of the page. Metrics omit them, because they name clients."""

from __future__ import annotations

from collections.abc import Sequence

from quire.types import ClientUsage, RequestSummary

MAX_CLIENTS = 200
"""Number of clients that are counted; beyond it, the client whose last request is the oldest is forgotten."""


class ClientUsages:
    """Counts ended requests by client."""

    def __init__(self) -> None:
        self._usages: dict[str, ClientUsage] = {}  # least recently used first

    def finished(self, summary: RequestSummary) -> None:
        """Count an ended request."""
        before = self._usages.pop(summary.client, None) or ClientUsage(summary.client)
        self._usages[summary.client] = before.plus(summary)
        if len(self._usages) > MAX_CLIENTS:
            del self._usages[next(iter(self._usages))]

    def all(self) -> Sequence[ClientUsage]:
        """The client whose request ended last comes first."""
        return [*self._usages.values()][::-1]
