"""The log format of all processes of a server: lines of text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"
TIME = "%H:%M:%S"

FORMATS = ("text", "json")

ACCESS = "uvicorn.access"
ACCESS_FIELDS = ("client", "method", "path", "http_version", "status")
"""Names of the arguments of a record of the HTTP library about one request."""

request_fields: ContextVar[Mapping[str, str]] = ContextVar("request_fields", default=MappingProxyType({}))
"""Fields about the request that the current task or thread serves, such as `request_id`; JSON objects contain them."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object without line breaks.

    time: RFC 3339 in UTC with milliseconds; level; logger; message; pid. A record about a request also has
    `request_id`, and `trace_id` and `span_id` if it is traced; one with an exception has `exception`, the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **request_fields.get(),
        }
        if (request_id := record.__dict__.get("request_id")) is not None:
            entry["request_id"] = request_id
        if record.name == ACCESS and isinstance(record.args, tuple) and len(record.args) == len(ACCESS_FIELDS):
            entry.update(zip(ACCESS_FIELDS, record.args, strict=True))
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def log_to_stderr(level: str = "warning", log_format: str = "text") -> None:
    """Send log records to stderr; `level` applies to loggers without a level of their own.

    log_format: text, or json: then warnings of Python and exceptions that end a thread are log records too.
    """
    if log_format == "text":
        logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=TIME)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("quire").critical("uncaught exception", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "?"
    error = (args.exc_type, args.exc_value, args.exc_traceback)
    logging.getLogger("quire").critical("uncaught exception in thread %s", name, exc_info=error)
