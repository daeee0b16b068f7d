"""All errors that users, clients or plugins can cause, with the HTTP status of each.

    QuireError                    500 InternalServerError
    ├── BadRequest                400 BadRequestError        also a ValueError
    │   ├── PromptTooLong         more tokens than the context of the model
    │   └── UnsupportedConstraint a grammar back end cannot honor a constraint; another one may
    ├── Unauthorized              401
    ├── NotFound                  404 NotFoundError
    ├── TooLarge                  413 RequestTooLarge
    ├── Unprocessable             422 UnprocessableEntityError
    ├── NotSupported              501 NotImplementedError
    ├── Overloaded                503 ServiceUnavailableError  a limit was reached; try again later
    ├── EngineDied                503 ServiceUnavailableError  the engine process ended
    ├── ModelUnloaded             503 ServiceUnavailableError  the model of a request is being unloaded
    ├── ModelAsleep               503 ServiceUnavailableError  the model of a request sleeps, or was put to sleep
    ├── ModelNotLoaded            503 ServiceUnavailableError  the model of a request could not be loaded
    ├── PluginFailed              500 InternalServerError    a plugin raised while serving one request
    │   └── PluginOff             503 ServiceUnavailableError  a plugin failed too often and is switched off for a while
    └── StartupError                                         the process cannot start, or a model cannot load
        ├── ConfigError           a setting is wrong
        ├── PluginError           a plugin is unknown, broken, or clashes with another
        ├── CheckpointError       a model folder cannot be used
        │   └── UnknownArchitecture
        └── NoMemory              400 BadRequestError  a model does not fit beside the others

Each message is a sentence for the person who caused the error: what is wrong, and what is allowed.
"""

from __future__ import annotations

from typing import Any, Self, TypeAlias

WireError: TypeAlias = tuple[str, ...]
"""An error as plain data: class name, message and, if there is one, `param`."""


class QuireError(Exception):
    """Base class of all errors that Quire raises on purpose."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[Any, tuple[str, str | None]]:
        return self.__class__, (self.message, self.param)

    @property
    def wire(self) -> WireError:
        """The error as plain data; `from_wire` is the inverse."""
        return (type(self).__name__, self.message, *([] if self.param is None else [self.param]))


class BadRequest(QuireError, ValueError):
    """A value in a request is wrong; `param` names the field."""

    status = 400
    type = "BadRequestError"


class PromptTooLong(BadRequest):
    """A prompt does not fit into the context of the model, or leaves no room for an answer."""


class UnsupportedConstraint(BadRequest):
    """A structured-output back end cannot honor a constraint; another one may."""


class Unauthorized(QuireError):
    """The API key is missing or wrong."""

    status = 401
    type = "Unauthorized"


class NotFound(QuireError):
    """A model, adapter or route does not exist."""

    status = 404
    type = "NotFoundError"


class TooLarge(QuireError):
    """A request body or a media item exceeds its limit."""

    status = 413
    type = "RequestTooLarge"


class Unprocessable(QuireError):
    """An input was fetched but cannot be decoded."""

    status = 422
    type = "UnprocessableEntityError"


class NotSupported(QuireError):
    """The model does not support the endpoint."""

    status = 501
    type = "NotImplementedError"


class Overloaded(QuireError):
    """A limit on requests or work in progress was reached; the request was not accepted."""

    status = 503
    type = "ServiceUnavailableError"


class EngineDied(QuireError):
    """The engine process ended while the request was running."""

    status = 503
    type = "ServiceUnavailableError"


class ModelUnloaded(QuireError):
    """The model of a request is being unloaded: it takes no new requests, or its running ones were ended."""

    status = 503
    type = "ServiceUnavailableError"


class ModelAsleep(QuireError):
    """The model of a request sleeps: it takes no requests until it is woken, or its running ones were ended."""

    status = 503
    type = "ServiceUnavailableError"


class ModelNotLoaded(QuireError):
    """The model of a request could not be loaded. retry_after_s: when it is tried again."""

    status = 503
    type = "ServiceUnavailableError"
    retry_after_s: int | None = None


class PluginFailed(QuireError):
    """A plugin raised while it processed a request; other requests continue."""


class PluginOff(PluginFailed):
    """A plugin that a request needs is switched off for a while, because it failed too often."""

    status = 503
    type = "ServiceUnavailableError"


class StartupError(QuireError):
    """The process cannot start, or a model cannot be loaded."""

    def of_model(self, name: str) -> Self:
        """The error with the model's name in front, for when several models are loaded."""
        return type(self)(f"{name}: {self.message}", self.param)


class ConfigError(StartupError, ValueError):
    """The value of a setting is not possible."""


class PluginError(StartupError):
    """A plugin is unknown or broken, has another contract version, or clashes with another one."""


class CheckpointError(StartupError, ValueError):
    """A model folder is incomplete, corrupt, or does not fit its own config."""


class UnknownArchitecture(CheckpointError):
    """No loaded plugin can build the architecture that a config.json names."""


class NoMemory(ConfigError, CheckpointError):
    """A model does not fit beside the others; it may when they are unloaded."""

    status = 400
    type = "BadRequestError"


STATUS_BY_TYPE_NAME: dict[str, type[QuireError]] = {
    cls.__name__: cls
    for cls in (
        QuireError,
        BadRequest,
        PromptTooLong,
        Unauthorized,
        NotFound,
        TooLarge,
        Unprocessable,
        NotSupported,
        Overloaded,
        EngineDied,
        ModelUnloaded,
        ModelAsleep,
        PluginFailed,
        PluginOff,
        CheckpointError,
        UnknownArchitecture,
        NoMemory,
        ConfigError,
    )
}


STATUS_DESCRIPTIONS = {
    400: "The request is malformed or asks for something that is not allowed.",
    401: "The API key is missing or wrong.",
    403: "A request gate refused.",
    404: "The model does not exist.",
    413: "The body, or a medium in it, is larger than the server accepts.",
    415: "The body is compressed in a way that the server does not know.",
    422: "A medium could not be fetched or decoded.",
    429: "A request gate refused for now.",
    500: "The server or a plugin failed.",
    501: "The model cannot do this.",
    503: "A bound on work in flight was reached, or the models are restarting; try again later.",
}
"""What the statuses of routes that run models mean, for the OpenAPI document."""


def from_wire(wire: WireError) -> QuireError:
    """The error of plain data; a class that clients cannot see becomes a `QuireError`."""
    name, *arguments = wire
    return STATUS_BY_TYPE_NAME.get(name, QuireError)(*arguments)
