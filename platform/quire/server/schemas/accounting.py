"""The responses about accounts, for the OpenAPI document only."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class UsageResult(BaseModel):
    """The sums of one group in one bucket; the group has the fields of `group_by`."""

    model_config = ConfigDict(extra="allow")

    object: str
    num_model_requests: int
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    drafted_tokens: int
    accepted_draft_tokens: int
    device_seconds: float
    media_items: int
    media_bytes: int
    audio_seconds: float


class UsageBucket(BaseModel):
    """The groups of one interval. Times are Unix seconds."""

    object: str
    start_time: int
    end_time: int | None
    results: list[UsageResult]


class UsagePage(BaseModel):
    """The answer of `GET /v1/usage`."""

    object: str
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class AuditRow(BaseModel):
    """One change of the server. outcome: `ok`, or why it failed."""

    object: str
    id: str
    time: float
    actor: str
    action: str
    target: str
    outcome: str
    details: dict[str, Any]


class AuditList(BaseModel):
    """The answer of `GET /v1/audit`."""

    object: str
    data: list[AuditRow]
    has_more: bool
    next_page: str | None
