"""Reads the YAML file that --config names, and returns its values as command-line strings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import configargparse

MODELS = "models"
"""The setting whose value is passed as JSON even if it is a plain list or string."""


class YamlFile(configargparse.YAMLConfigFileParser):  # type: ignore[misc]
    """A YAML file of settings. Keys have dashes or underscores; nested values become the JSON value of one flag.

    lines: line number of each key in the last file read, from 1. name: name of that file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}
        self.name = ""

    def location(self, key: str) -> str:
        """File name and line of a key."""
        return f"{self.name}, line {self.lines[key]}"

    def parse(self, stream: Iterable[str]) -> dict[str, Any]:
        """Read the file; returns the values as command-line strings."""
        import yaml

        self.name = str(getattr(stream, "name", "the file"))
        text = "".join(stream)
        try:
            settings, root = _read(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise configargparse.ConfigFileParserException(
                f"{self._at(error)} invalid YAML: {_problem(error)}"
            ) from error
        if not isinstance(settings, dict):
            raise configargparse.ConfigFileParserException(
                f"{self.name}: the file must map settings to values, such as `port: 8000`"
            )
        pairs = root.value if root is not None else []
        self.lines = {_key(key.value): key.start_mark.line + 1 for key, _ in pairs}
        return {_key(key): _to_argument(_key(key), value) for key, value in settings.items() if value is not None}

    def _at(self, error: Exception) -> str:
        mark = getattr(error, "problem_mark", None)
        return f"{self.name}, line {mark.line + 1}:" if mark else f"{self.name}:"


def _read(text: str) -> tuple[Any, Any]:
    """The value of a YAML document, and its root node; None for an empty one."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)  # the former is many times faster
    try:
        root = loader.get_single_node()
        return (loader.construct_document(root), root) if root is not None else ({}, None)
    finally:
        loader.dispose()


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or str(error).splitlines()[0])


def _key(key: Any) -> str:
    return str(key).replace("_", "-")


def _to_argument(key: str, value: Any) -> Any:
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value))
    if nested or key == MODELS:
        return json.dumps(value)
    if key == "plugins" and isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
