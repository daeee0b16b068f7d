"""Every error a user, a client or a plugin can cause, with the HTTP status it becomes.

    QuireError                    500 InternalServerError
    ├── BadRequest                400 BadRequestError        also a ValueError
    │   └── CannotConstrain       this grammar back end cannot do it, another may
    ├── Unauthorized              401
    ├── NotFound                  404 NotFoundError
    ├── TooLarge                  413 RequestTooLarge
    ├── Unprocessable             422 UnprocessableEntityError
    ├── NotSupported              501 NotImplementedError
    ├── Overloaded                503 ServiceUnavailableError  a bound was reached; try again later
    ├── HostDied                  503 ServiceUnavailableError  the process running the models ended
    ├── PluginFailed              500 InternalServerError    a plugin raised while serving one request
    │   └── PluginOff             503 ServiceUnavailableError  a plugin failed too often and is not called now
    └── StartupError                                         the process cannot start, or a model cannot load
        ├── ConfigError           a setting is wrong
        ├── PluginError           a plugin is unknown, broken, or clashes with another
        └── CheckpointError       a model folder cannot be used
            └── UnknownArchitecture

The message of each is a sentence for the person who caused it: what was wrong, what is allowed.
It knows nothing of HTTP beyond the number.
"""

from __future__ import annotations

from typing import Any, Self, TypeAlias

Told: TypeAlias = tuple[str, ...]
"""An error as plain data: see `QuireError.told`."""


class QuireError(Exception):
    """Base of all errors that Quire raises on purpose."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[Any, tuple[str, str | None]]:
        return self.__class__, (self.message, self.param)

    @property
    def told(self) -> Told:
        """Name of the class, message and, if there is one, param; `error_told` makes the error of them again."""
        return (type(self).__name__, self.message, *([] if self.param is None else [self.param]))


class BadRequest(QuireError, ValueError):
    """A request has a wrong value; `param` names the field."""

    status = 400
    type = "BadRequestError"


class CannotConstrain(BadRequest):
    """A structured-output back end cannot honour what it was asked for; another may."""


class Unauthorized(QuireError):
    """The API key is missing or wrong."""

    status = 401
    type = "Unauthorized"


class NotFound(QuireError):
    """A model, adapter or route that does not exist."""

    status = 404
    type = "NotFoundError"


class TooLarge(QuireError):
    """A body or medium is over its bound."""

    status = 413
    type = "RequestTooLarge"


class Unprocessable(QuireError):
    """An input was reached but cannot be decoded."""

    status = 422
    type = "UnprocessableEntityError"


class NotSupported(QuireError):
    """The loaded model cannot do what the endpoint offers."""

    status = 501
    type = "NotImplementedError"


class Overloaded(QuireError):
    """A bound on work in flight was reached; nothing was accepted."""

    status = 503
    type = "ServiceUnavailableError"


class HostDied(QuireError):
    """The process that runs the models ended while the request was in flight."""

    status = 503
    type = "ServiceUnavailableError"


class PluginFailed(QuireError):
    """A plugin raised while it served a request; other requests go on."""


class PluginOff(PluginFailed):
    """A plugin that a request needs failed so often that it is not called for a while."""

    status = 503
    type = "ServiceUnavailableError"


class StartupError(QuireError):
    """The process cannot start, or a model cannot be loaded."""

    def of_model(self, name: str) -> Self:
        """The same, which says the model that it is about, for where several are loaded."""
        return type(self)(f"{name}: {self.message}", self.param)


class ConfigError(StartupError, ValueError):
    """A setting has a value that cannot work."""


class PluginError(StartupError):
    """A plugin is unknown, broken, of another contract version, or clashes with another."""


class CheckpointError(StartupError, ValueError):
    """A model folder is incomplete, corrupt, or does not fit its own config."""


class UnknownArchitecture(CheckpointError):
    """No loaded plugin can build the architecture that a config.json names."""


STATUS_BY_TYPE_NAME: dict[str, type[QuireError]] = {
    cls.__name__: cls
    for cls in (
        QuireError,
        BadRequest,
        Unauthorized,
        NotFound,
        TooLarge,
        Unprocessable,
        NotSupported,
        Overloaded,
        HostDied,
        PluginFailed,
        PluginOff,
        CheckpointError,
        UnknownArchitecture,
        ConfigError,
    )
}


def error_told(told: Told) -> QuireError:
    """The error of which these are `told`; one of no class that a client can see is a QuireError."""
    name, *about = told
    return STATUS_BY_TYPE_NAME.get(name, QuireError)(*about)
