"""Reads input files of batches line by line, and checks them before anything is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quire.errors import BadRequest
from quire.types.batch_line import MAX_LINE_BYTES, parse_line
from quire_batches.records import LineError

MAX_ERRORS = 100
"""Errors of a file that are reported; reading ends with the last of them."""

MAX_ID_CHARS = 512
MAX_MODELS = 100
"""Different names of models that are kept of a batch."""

SKIPPED_BYTES = 1 << 20


@dataclass(slots=True)
class CheckedFile:
    """What a file contains. models: the names in its lines, without repetition."""

    total: int = 0
    models: dict[str, None] = field(default_factory=dict)
    errors: list[LineError] = field(default_factory=list)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, text) of each line that is not blank, counted from 1. Of a line of more than `MAX_LINE_BYTES` one byte
    more is read, and the rest skipped. Raises OSError.
    """
    with path.open("rb") as file:
        number = 0
        while text := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = text
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(SKIPPED_BYTES)
            if text.strip():
                yield number, text


def check_lines(path: Path, endpoint: str, max_lines: int) -> CheckedFile:
    """Check every line of a file whose requests go to `endpoint`. The GIL is released after each line."""
    found, ids = CheckedFile(), dict[str, int]()
    for number, text in read_lines(path):
        found.total += 1
        if found.total > max_lines:
            found.errors.append(LineError("too_many_lines", f"A batch may have at most {max_lines} requests."))
            break
        wrong = _check_line(text, number, endpoint, ids, found.models)
        if wrong is not None:
            found.errors.append(wrong)
        if len(found.errors) == MAX_ERRORS:
            break
        time.sleep(0)
    if not found.total:
        found.errors.append(LineError("empty_file", "The input file has no requests."))
    return found


def _check_line(
    text: bytes, number: int, endpoint: str, ids: dict[str, int], models: dict[str, None]
) -> LineError | None:
    """What is wrong with a line. ids: of the lines before it, with their numbers."""
    try:
        line = parse_line(text, (endpoint,))
    except BadRequest as error:
        code = f"invalid_{error.param}" if error.param else "invalid_json_line"
        return LineError(code, error.message, number, error.param)
    given = line.custom_id
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID_CHARS:
        message = f"`custom_id` must be a text of 1 to {MAX_ID_CHARS} characters."
        return LineError("invalid_custom_id", message, number, "custom_id")
    if given in ids:
        message = f"The `custom_id` {given!r:.80} is that of line {ids[given]} too; ids must differ."
        return LineError("duplicate_custom_id", message, number, "custom_id")
    ids[given] = number
    if line.model is not None and len(models) < MAX_MODELS:
        models[line.model] = None
    return None
