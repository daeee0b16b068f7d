"""Log records as JSON objects: one line each, with the request's id and the traceback inside."""

import json
import logging
import sys
import threading
import warnings
from contextlib import contextmanager

import pytest

from quire.log_format import JsonFormatter, log_to_stderr, request_fields


def formatted(**record):
    made = logging.makeLogRecord({"name": "quire.x", "levelname": "INFO", "created": 1764000000.25, **record})
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return json.loads(line)


def test_a_record_is_an_object_with_time_level_logger_and_message():
    entry = formatted(msg="loaded %s\n%d", args=("é", 3), process=7)
    assert entry == {
        "time": "2025-11-24T16:00:00.250Z",
        "level": "INFO",
        "logger": "quire.x",
        "message": "loaded é\n3",
        "pid": 7,
    }


def test_the_fields_of_the_request_are_in_its_records():
    token = request_fields.set({"request_id": "r1", "trace_id": "t"})
    try:
        assert {"request_id": "r1", "trace_id": "t"}.items() <= formatted(msg="x").items()
    finally:
        request_fields.reset(token)
    assert formatted(msg="x", request_id="from the engine")["request_id"] == "from the engine"
    assert "request_id" not in formatted(msg="x")


def test_a_traceback_is_one_field():
    try:
        raise ValueError("no\nnumber")
    except ValueError:
        entry = formatted(msg="failed", exc_info=sys.exc_info())
    assert entry["message"] == "failed"
    assert entry["exception"].startswith("Traceback (most recent call last):\n")
    assert entry["exception"].endswith("ValueError: no\nnumber")


def test_lines_of_the_http_library_about_requests_have_their_parts_as_fields():
    arguments = ("127.0.0.1:1", "GET", '/a"b\nc', "1.1", 404)
    entry = formatted(name="uvicorn.access", msg='%s - "%s %s HTTP/%s" %d', args=arguments)
    parts = {"client": "127.0.0.1:1", "method": "GET", "path": '/a"b\nc', "http_version": "1.1", "status": 404}
    assert parts.items() <= entry.items()
    assert "path" not in formatted(name="uvicorn.access", msg="hello")


@contextmanager
def fresh_logging():
    """The root logger without pytest's handlers, and hooks that are put back."""
    root = logging.getLogger()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(root, "handlers", [])
        patch.setattr(root, "level", root.level)
        for place in (sys, threading):
            patch.setattr(place, "excepthook", place.excepthook)
        yield
        logging.captureWarnings(False)


def test_warnings_and_exceptions_that_nothing_catches_are_objects_too(capsys):
    def fail():
        raise KeyError("k")

    with fresh_logging():
        log_to_stderr(log_format="json")
        warnings.simplefilter("default")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=fail, name="worker-1")
        thread.start()
        thread.join()
        try:
            fail()
        except KeyError:
            sys.excepthook(*sys.exc_info())
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [entry["logger"] for entry in entries] == ["py.warnings", "quire", "quire"]
    assert [entry["level"] for entry in entries] == ["WARNING", "CRITICAL", "CRITICAL"]
    assert "DeprecationWarning: old" in entries[0]["message"]
    assert entries[1]["message"] == "uncaught exception in thread worker-1"
    assert all(entry["exception"].endswith("KeyError: 'k'") for entry in entries[1:])


def test_text_is_one_line_of_level_time_and_logger(capsys):
    with fresh_logging():
        log_to_stderr()
        logging.getLogger("quire.x").warning("slow")
    level, time, rest = capsys.readouterr().err.split(" ", 2)
    assert (level, time.count(":"), rest) == ("WARNING", 2, "quire.x: slow\n")
