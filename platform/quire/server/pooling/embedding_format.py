"""Encodes embeddings as JSON, base64 or bytes, in float32, float16 or bfloat16, in either byte order."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import BadRequest
from quire.params.pooling import PoolingResult
from quire.server.schemas.pooling import EncodingFields

if TYPE_CHECKING:
    from numpy.typing import NDArray

_encode = msgspec.json.Encoder().encode


def check_encoding(fields: EncodingFields) -> None:
    """Raise `BadRequest` for a data type or byte order with numbers in JSON."""
    if fields.encoding_format == "float":
        for name, allowed in (("embed_dtype", ("float32",)), ("endianness", ("native", "little"))):
            if getattr(fields, name) not in allowed:
                raise BadRequest(f"`{name}` needs an `encoding_format` of base64, bytes or bytes_only.", name)


def number_encoder(fields: EncodingFields) -> Callable[[PoolingResult], Any]:
    """Encodes the numbers of a result for a JSON answer: as lists, already encoded, or as base64."""
    if fields.encoding_format == "float":
        return lambda pooled: msgspec.Raw(_encode(pooled.numbers().tolist()))
    return lambda pooled: base64.b64encode(raw_bytes(pooled, fields)).decode()


def raw_bytes(pooled: PoolingResult, fields: EncodingFields) -> bytes:
    """The numbers in the requested data type and byte order."""
    order = sys.byteorder if fields.endianness == "native" else fields.endianness
    if fields.embed_dtype == "float32" and order == "little":
        return pooled.data
    numbers = _in_dtype(pooled, fields.embed_dtype)
    return numbers.astype(numbers.dtype.newbyteorder("<" if order == "little" else ">"), copy=False).tobytes()


def _in_dtype(pooled: PoolingResult, dtype: str) -> NDArray[Any]:
    import numpy as np

    numbers = pooled.numbers()
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16)
    if dtype == "bfloat16":  # the upper half of a float32, rounded to the nearest, to even on a tie
        bits = numbers.view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return numbers
