"""Why an attention library cannot run under some conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from quire.plugin import OpQuery

HALVES = ("float16", "bfloat16")


def missing(package: str) -> str | None:
    return None if find_spec(package) else f"{package} is not installed"


def unsupported(query: OpQuery, dtypes: Sequence[str], oldest: int, widest: int, multiple: int = 8) -> str | None:
    """What a library's kernels cannot do here, None if they can.

    oldest: compute capability times ten. widest: head dimension, a multiple of `multiple`.
    """
    if query.device != "cuda":
        return "it is for GPUs"
    if query.kv_dtype != "auto":
        return f"it reads keys and values in the model's data type, not {query.kv_dtype}"
    if query.dtype not in dtypes:
        return f"it computes in {' and '.join(dtypes)}, not {query.dtype}"
    if (found := capability(query)) is not None and found < oldest:
        return f"it needs compute capability {oldest / 10}, and the GPU has {found / 10}"
    dims = [dim for dim in query.head_dims if dim > widest or dim % multiple]
    return f"head dimensions are multiples of {multiple} up to {widest}, not {dims[0]}" if dims else None


def capability(query: OpQuery) -> int | None:
    """Compute capability times ten; None if it is not known."""
    found = [int(match[1]) for name in query.features if (match := re.fullmatch(r"sm(\d+)", name))]
    return found[0] if found else None
