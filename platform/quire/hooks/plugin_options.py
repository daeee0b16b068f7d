"""Converts the values of plugin options from the text of flags and files to the declared types.

The results are in `registry.options[plugin][name]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import ConfigError
from quire.hooks.discovery import suggestion
from quire.records import Option

Values = Mapping[str, Mapping[str, Any]]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def fill(declared: Mapping[str, Mapping[str, Option]], given: Values) -> dict[str, dict[str, Any]]:
    """The defaults, overridden by the given values: {plugin: {option: value}}.

    declared: by plugin, options by name. Raises ConfigError for an unknown plugin or option, and for a value that does
    not fit the option's type.
    """
    for plugin in given:
        if plugin not in declared:
            raise ConfigError(f"No loaded plugin is called {plugin!r}.{suggestion(plugin, declared)}")
    return {plugin: _fill_one(plugin, options, given.get(plugin, {})) for plugin, options in declared.items()}


def _fill_one(plugin: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in options:
            known = f"It has: {', '.join(options)}." if options else "It has none."
            hint = suggestion(name, options)
            raise ConfigError(f"Plugin {plugin!r} has no option {name!r}.{hint} {known}")
    return {
        name: _convert(f"--{plugin}.{name}", option, given[name]) if name in given else option.default
        for name, option in options.items()
    }


def _convert(flag: str, option: Option, value: Any) -> Any:
    if option.type is bool:
        return _to_bool(flag, value)
    fits = isinstance(value, option.type) and not isinstance(value, bool)
    if fits:
        return value
    try:
        return option.type(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{flag} must be of type {option.type.__name__}; got {value!r}.") from error


def _to_bool(flag: str, value: Any) -> bool:
    word = str(value).lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ConfigError(f"{flag} must be true or false; got {value!r}.")
