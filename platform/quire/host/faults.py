"""Errors as plain data on their way between the two processes. It knows no messages."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quire.errors import STATUS_BY_TYPE_NAME, ConfigError, PluginError, QuireError, StartupError


class Fault(msgspec.Struct, frozen=True):
    """An error of `quire.errors` by the name of its class."""

    kind: str
    message: str
    param: str | None = None


_KINDS: Mapping[str, type[QuireError]] = {
    **STATUS_BY_TYPE_NAME,
    **{kind.__name__: kind for kind in (StartupError, ConfigError, PluginError)},
}


def fault_of(error: BaseException) -> Fault:
    """What to send of an exception: ours as they are, others by name and message."""
    if isinstance(error, QuireError):
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _KINDS)
        return Fault(kind, error.message, error.param)
    return Fault(QuireError.__name__, f"{type(error).__name__}: {error}")


def error_of(fault: Fault) -> QuireError:
    """The exception that a fault stands for."""
    return _KINDS.get(fault.kind, QuireError)(fault.message, fault.param)
