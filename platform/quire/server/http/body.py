"""Reads the JSON body of a request: decompress, check its size, parse, validate.

FastAPI's own reader accepts NaN, lone surrogates and any nesting depth. Routes read the body themselves, so that the
request gates of plugins see it before it is validated.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from quire.errors import QuireError, TooLarge
from quire.server.http.errors import MalformedBody, validation_error
from quire.server.http.long_strings import decode
from quire.server.process.workers import Workers
from quire.text.tokenizer.long_texts import ShouldContinue

T = TypeVar("T")

LARGE_BODY = 64 << 10
"""Bodies of more bytes are parsed and validated in a worker thread. For smaller ones the thread costs more than it
saves."""

MAX_DEPTH = 100
CONTAINER_SHARE = 8
"""Lists and objects, and members of objects, may each be this fraction of all values: they take longer to create."""

MAX_ESCAPES = 2 << 20
"""Backslashes in all strings. The parser takes about 10 ns for each and holds the GIL meanwhile."""

BLOCK_BYTES = 128 << 10
"""Bytes counted in one go: other threads can run between two blocks."""

INFLATE_BYTES = 256 << 10
"""Bytes decompressed in one go."""

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class UnsupportedEncoding(QuireError):
    """The body has a content encoding that the server cannot decompress."""

    status = 415
    type = "UnsupportedMediaTypeError"


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed JSON object. large: work on all of it belongs in a worker thread."""

    value: dict[str, Any]
    large: bool


class Bodies:
    """Reads the JSON bodies of requests, with limits on their bytes and on their number of JSON values."""

    def __init__(self, max_bytes: int, max_values: int, workers: Workers) -> None:
        self._max_bytes, self._max_values, self._workers = max_bytes, max_values, workers

    async def read(self, request: Request) -> Body:
        """The body as a JSON object. Raises `MalformedBody`, `TooLarge` or `UnsupportedEncoding`."""
        media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if media_type != "application/json":
            raise MalformedBody("Unsupported Media Type: Only 'application/json' is allowed")
        encoding = check_encoding(request.headers.get("content-encoding", ""))
        chunks = [chunk async for chunk in request.stream()]
        if not encoding and sum(map(len, chunks)) <= LARGE_BODY:
            return Body(parse_object(b"".join(chunks), self._max_values), large=False)
        return await self._workers.run(partial(self._parse, chunks, encoding))

    async def validate(self, body: Body, check: Callable[[], T]) -> T:
        """The result of `check`, which runs in a worker thread if the body is large."""
        return await self._workers.run(lambda _: check()) if body.large else check()

    def _parse(self, chunks: list[bytes], encoding: str, _: ShouldContinue) -> Body:
        data = b"".join(chunks)  # releases the GIL, unlike parsing
        chunks.clear()
        if encoding:
            data = decompress(data, encoding, self._max_bytes)
        return Body(parse_object(data, self._max_values), large=len(data) > LARGE_BODY)


def validate(model: type[BaseModel], body: Mapping[str, Any]) -> Any:
    """An instance of `model`; raises `MalformedBody`, which names the fields that are wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_context=False), body) from None
    except RecursionError:
        raise MalformedBody("The body is nested too deeply.") from None


def check_encoding(encoding: str) -> str:
    """The content encoding of a body, "" for none. Raises `UnsupportedEncoding`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in _WINDOWS:
        raise UnsupportedEncoding(
            f"A body may be sent plain or with one of the content encodings gzip and deflate, not {name!r:.40}."
        )
    return name


def decompress(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """The decompressed body. Raises `TooLarge` as soon as it has more than `max_bytes`, `MalformedBody` if damaged."""
    inflate = zlib.decompressobj(_WINDOWS[encoding])
    blocks: list[bytes] = []
    size = 0
    try:
        while not inflate.eof:
            block = inflate.decompress(data, INFLATE_BYTES)
            data = inflate.unconsumed_tail
            if not block and not data:
                break
            size += len(block)
            if size > max_bytes:
                raise TooLarge(f"The request body may have at most {max_bytes} bytes, unpacked.")
            blocks.append(block)
    except zlib.error as error:
        raise MalformedBody(f"The body is not valid {encoding}: {error}") from None
    if not inflate.eof or inflate.unused_data:
        raise MalformedBody(f"The body is not valid {encoding}: it ends too early, or more follows it.")
    return b"".join(blocks)


def parse_object(data: bytes, max_values: int) -> dict[str, Any]:
    """Parse strict JSON: UTF-8, no NaN or Infinity, limits on depth and number of values, an object outermost."""
    check_json_size(data, max_values)
    try:
        value = decode(data)
    except RecursionError:
        raise MalformedBody(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedBody("The body must be a JSON object.")
    return value


@dataclass(slots=True)
class _JsonCounts:
    values: int = 1
    containers: int = 0
    members: int = 0
    depth: int = 0
    max_depth: int = 0

    def add(self, outside: bytes) -> None:
        """Count a block of JSON text without its strings."""
        self.values += outside.count(b",")
        self.members += outside.count(b":")
        brackets = outside.translate(_STEPS, _NOT_BRACKETS)
        if brackets:
            depths = array("l", accumulate(array("b", brackets), initial=self.depth))
            self.containers += brackets.count(b"\x01")
            deepest = max(depths)
            self.max_depth = max(self.max_depth, deepest)
            self.depth = depths[-1]


def check_json_size(data: bytes, max_values: int) -> None:
    """Raise `MalformedBody` for more JSON values, containers, members or levels than are allowed, before parsing.

    A number takes 7 bytes and an empty list fewer, so a body of some MB may hold millions of values, which take seconds
    to create and hundreds of MB to keep. Strings are cheap at any length. max_values: values of any kind; lists and
    objects, and members of objects, may each be 1 / `CONTAINER_SHARE` of it. Invalid JSON is counted the same way and
    left to the parser.
    """
    counts = _JsonCounts()
    max_containers = max(1, max_values // CONTAINER_SHARE)
    for outside in _outside_strings(data):
        counts.add(outside)
        if counts.values > max_values:
            raise MalformedBody(f"The body has more than {max_values} JSON values (--max-json-values).")
        if counts.containers > max_containers or counts.members > max_containers:
            raise MalformedBody(
                f"The body has more than {max_containers} lists and objects, or members of objects: an eighth of the"
                f" {max_values} JSON values that it may have (--max-json-values)."
            )
        if counts.max_depth > MAX_DEPTH:
            raise MalformedBody(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """The JSON text without its strings, block by block."""
    begin, inside = 0, False
    escapes = 0
    while begin < len(data):
        end = _end_of_block(data, begin)
        block = data[begin:end]
        if b"\\" in block:  # remove escaped quotes: they end no string
            escapes += block.count(b"\\")
            if escapes > MAX_ESCAPES:
                raise MalformedBody(f"The body has more than {MAX_ESCAPES} backslashes in its strings.")
            block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = block.split(b'"')
        yield b"".join(parts[1 if inside else 0 :: 2])
        inside ^= len(parts) % 2 == 0
        begin = end


def _end_of_block(data: bytes, begin: int) -> int:
    """A block never ends after a backslash, so that it splits no escape sequence."""
    end = min(begin + BLOCK_BYTES, len(data))
    while end < len(data) and data[end - 1] == 0x5C:
        end += 1
    return end


def with_bodies(openapi: dict[str, Any], models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The OpenAPI document with the schemas of these bodies."""
    inputs = [(model, "validation") for model in models]
    _, schemas = models_json_schema(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    components = openapi.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in schemas["$defs"].items():
        components.setdefault(name, schema)
    return openapi
