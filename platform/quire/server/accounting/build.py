"""Builds the accounts of a server from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.records import Registry
from quire.server.accounting.audit import Audit
from quire.server.accounting.ledger import UsageLedger
from quire.server.accounting.reading import UsageReader
from quire.server.accounting.retention import RetentionLimits
from quire.server.accounting.store import UsageStore
from quire.server.accounting.usage_metrics import UsageMetrics
from quire.server.accounting.writer import WriterThread
from quire.settings.server_config import ServerConfig


@dataclass(frozen=True)
class Accounting:
    """The accounts of a server. reader: None if it stores nothing."""

    ledger: UsageLedger
    audit: Audit
    reader: UsageReader | None


def build_accounting(config: ServerConfig, registry: Registry) -> Accounting:
    """Raises ConfigError if the files of the settings cannot be used."""
    ledger = UsageLedger(registry, UsageMetrics(config.metrics_prefix, config.metrics_max_tenants))
    store, path = None, None if config.usage_db is None else Path(config.usage_db)
    if path is not None:
        store = UsageStore(path, RetentionLimits(days=config.usage_days, rows=config.usage_max_rows))
    audit_log = None if config.audit_log is None else Path(config.audit_log)
    if store is None and audit_log is None:
        return Accounting(ledger, Audit(), None)
    writer = WriterThread(store, audit_log, ledger.on_written)
    if store is not None:
        ledger.write_with(writer)
    return Accounting(ledger, Audit(writer), None if path is None else UsageReader(path))
