"""The state of files and batches, as it is stored, and as clients see it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that have not ended."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file. owner: the client that it belongs to. expires_at: in Unix seconds; None: it is kept until deleted."""

    id: str
    owner: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def public(self) -> dict[str, Any]:
        """The file as an object of OpenAI's API."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class LineError(msgspec.Struct, frozen=True):
    """Why a batch failed. line: of the input file, counted from 1; None: it concerns the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. times: Unix seconds at which each status was reached, by names such as `in_progress_at`.

    outcome: the status that it will have when its files are written; "" while its lines run. output_expires_s: lifetime
    of its output files; None: as long as other files. models: those that its lines name and that were served when it
    was checked; after a restart it waits for them.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    status: str = "validating"
    outcome: str = ""
    times: dict[str, int] = {}
    total: int = 0
    completed: int = 0
    failed: int = 0
    models: list[str] = []
    errors: list[LineError] = []
    output_file_id: str | None = None
    error_file_id: str | None = None

    def moved(self, status: str, **changes: Any) -> StoredBatch:
        """The batch in another status, reached now."""
        times = {**self.times, f"{status}_at": int(time.time())}
        return msgspec.structs.replace(self, status=status, times=times, **changes)

    def public(self) -> dict[str, Any]:
        """The batch as an object of OpenAI's API."""
        reached = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.models[0] if len(self.models) == 1 else None,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(f"{status}_at") for status in reached},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


class Result(msgspec.Struct, frozen=True):
    """The answer to a line. number: of the line in the input file. is_good: its status is below 400. content: the line
    of the output or error file."""

    batch_id: str
    number: int
    is_good: bool
    content: bytes


def page(rows: list[Any], has_more: bool) -> Mapping[str, Any]:
    """A page of a list of files or batches."""
    return {
        "object": "list",
        "data": [row.public() for row in rows],
        "first_id": rows[0].id if rows else None,
        "last_id": rows[-1].id if rows else None,
        "has_more": has_more,
    }
