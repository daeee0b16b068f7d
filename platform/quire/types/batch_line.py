"""Lines of OpenAI's batch files: a request as JSON, and the line that answers it.

{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
{"id": "batch_req_...", "custom_id": "1", "response": {"status_code": 200, "body": {...}, ...}, "error": null}
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import BadRequest, QuireError

URLS = (
    *("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize"),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
"""Routes of the server that a line may name."""

MAX_LINE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request. body: JSON text. model: that the body names, if it names one."""

    custom_id: Any
    url: str
    body: bytes
    model: str | None


class _Line(msgspec.Struct):
    """The fields of a line. `body` is an unparsed object."""

    body: msgspec.Raw
    custom_id: Any = None
    method: Any = "POST"
    url: Any = None


class _Body(msgspec.Struct):
    """The fields of a body that a batch looks at."""

    stream: Any = None
    encoding_format: Any = None
    model: Any = None


_line = msgspec.json.Decoder(_Line)
_body = msgspec.json.Decoder(_Body)


def parse_line(text: bytes, urls: tuple[str, ...] = URLS) -> BatchLine:
    """Parse a line. Raises `BadRequest`, which names the field, if it is not a request to one of `urls`."""
    if len(text) > MAX_LINE_BYTES:
        raise BadRequest(f"The line has more than {MAX_LINE_BYTES} bytes.")
    try:
        line = _line.decode(text)
    except msgspec.ValidationError:
        raise BadRequest("The line must be an object with custom_id, method, url and body.") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        raise BadRequest(f"The line is not JSON: {error}.") from None
    if line.method != "POST":
        raise BadRequest(f"`method` must be POST; got {line.method!r:.80}.", "method")
    if line.url not in urls:
        raise BadRequest(f"`url` must be {_one_of(urls)}; got {line.url!r:.80}.", "url")
    try:
        body = _body.decode(line.body)
    except (ValueError, RecursionError):
        raise BadRequest("`body` must be an object.", "body") from None
    if body.stream:
        raise BadRequest("`stream` cannot be used in a batch.", "stream")
    if body.encoding_format in ("bytes", "bytes_only"):
        raise BadRequest("`encoding_format` must be float or base64 in a batch.", "encoding_format")
    return BatchLine(line.custom_id, line.url, bytes(line.body), body.model if isinstance(body.model, str) else None)


def custom_id_of(text: bytes) -> Any:
    """The `custom_id` of a line that may be wrong otherwise; None if it has none."""
    try:
        return msgspec.json.decode(text)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def answer_line(custom_id: Any, status: int, body: bytes, request_id: str = "") -> bytes:
    """The line for a response with a JSON body, with its line break."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body or b"null")}
    return _encoded(custom_id, response=response)


def error_line(custom_id: Any, error: QuireError, code: int | str | None = None) -> bytes:
    """The line for a request that was not sent, with its line break."""
    found = {"message": error.message, "type": error.type, "param": error.param, "code": code or error.status}
    return _encoded(custom_id, error=found)


def _encoded(custom_id: Any, response: Any = None, error: Any = None) -> bytes:
    line = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"


def _one_of(urls: tuple[str, ...]) -> str:
    return urls[0] if len(urls) == 1 else f"one of {', '.join(urls)}"
