"""One entry of the audit log, without secrets."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SECRET_NAME = re.compile(
    r"(^|[-_])(api[-_]?keys?|key|token|secrets?|password|authorization|credentials?)$", re.IGNORECASE
)
SECRET_IN_URL = re.compile(
    r"(?<=://)[^/@\s]+@|(?<=[?&])[^=&\s]*(?:key|token|secret|signature|sig)=[^&\s]+", re.IGNORECASE
)
BEARER = re.compile(r"\b(?:bearer\s+|sk-|hf_)[\w.\-]{6,}", re.IGNORECASE)
HIDDEN = "***"
MAX_TEXT = 500
MAX_ITEMS = 50


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """Who did what to the server. outcome: `ok`, or why it failed. details: JSON, without secrets."""

    actor: str
    action: str
    target: str
    outcome: str
    details: Mapping[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: float = field(default_factory=time.time)

    @property
    def row(self) -> tuple[str, float, str, str, str, str, str]:
        """Its columns in the database."""
        details = json.dumps(self.details, ensure_ascii=False, default=str)
        return self.id, self.time, self.actor, self.action, self.target, self.outcome, details

    @property
    def line(self) -> bytes:
        """A line of a file of JSON lines."""
        return json.dumps(asdict(self), ensure_ascii=False, default=str).encode() + b"\n"


def entry(actor: str, action: str, target: str, details: Mapping[str, Any], outcome: str) -> AuditEntry:
    """An entry of now, with every secret hidden and long texts cut."""
    return AuditEntry(
        actor=without_secrets(actor),
        action=action,
        target=without_secrets(target),
        outcome=without_secrets(outcome),
        details=without_secrets(dict(details)),
    )


def without_secrets(value: Any) -> Any:
    """A copy in which values are hidden whose names are those of secrets, and texts that look like secrets."""
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {str(k)[:MAX_TEXT]: HIDDEN if SECRET_NAME.search(str(k)) else without_secrets(v) for k, v in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [without_secrets(one) for one in list(value)[:MAX_ITEMS]]
    if isinstance(value, str):
        return BEARER.sub(HIDDEN, SECRET_IN_URL.sub(HIDDEN, value))[:MAX_TEXT]
    return value
