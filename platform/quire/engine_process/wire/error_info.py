"""Errors as plain data, to be sent between the two processes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quire.errors import STATUS_BY_TYPE_NAME, ConfigError, PluginError, QuireError, StartupError


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error of `quire.errors`; `kind` is the name of its class."""

    kind: str
    message: str
    param: str | None = None


_KINDS: Mapping[str, type[QuireError]] = {
    **STATUS_BY_TYPE_NAME,
    **{kind.__name__: kind for kind in (StartupError, ConfigError, PluginError)},
}


def to_error_info(error: BaseException) -> ErrorInfo:
    """The data of a `QuireError`; any other exception becomes a plain `QuireError` with its class and message."""
    if isinstance(error, QuireError):
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _KINDS)
        return ErrorInfo(kind, error.message, error.param)
    return ErrorInfo(QuireError.__name__, f"{type(error).__name__}: {error}")


def from_error_info(info: ErrorInfo) -> QuireError:
    return _KINDS.get(info.kind, QuireError)(info.message, info.param)
