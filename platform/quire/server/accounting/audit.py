"""The audit log: who changed what of the server, and with what outcome. The one place that records changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quire.errors import QuireError
from quire.server.accounting.audit_entry import entry
from quire.server.accounting.writer import WriterThread

log = logging.getLogger("quire.server")

OK = "ok"
SERVER = "server"
"""The actor of what the server does by itself."""


class Audit:
    """Records changes: in the log, and with a writer in the database and the file of `--audit-log`."""

    def __init__(self, writer: WriterThread | None = None) -> None:
        self._writer = writer

    def record(
        self, actor: str, action: str, target: str, details: Mapping[str, Any] | None = None, outcome: str = OK
    ) -> None:
        """Record a change that was made or refused. Cheap, in any thread; never raises.

        actor: the tenant that asked for it (`records.tenant_of`), or `SERVER`. action: a verb with what it changes,
        such as `load_model`. target: the name of what was changed. details: more about it; secrets are hidden.
        outcome: `OK`, or why it failed.
        """
        made = entry(actor, action, target, details or {}, outcome)
        log.info("audit: %s: %s %s: %s", made.actor or "unknown", made.action, made.target, made.outcome)
        if self._writer is not None:
            self._writer.put(entries=[made])

    @contextmanager
    def change(self, actor: str, action: str, target: str, details: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Record what happens in the `with` block, when it ends: its outcome is the error that it raises, if any.

        The block may add to `details`.
        """
        outcome = "cancelled"
        try:
            yield
            outcome = OK
        except QuireError as error:
            outcome = f"{type(error).__name__}: {error.message}"
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self.record(actor, action, target, details, outcome)
