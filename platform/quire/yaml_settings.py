"""The YAML file that --config names, read as the command line would say it. It knows no setting but `models`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import configargparse

MODELS = "models"
"""The setting whose value is JSON even where the file has a plain list or a word."""


class YamlFile(configargparse.YAMLConfigFileParser):  # type: ignore[misc]
    """A YAML file of settings: keys with dashes or underscores, nested values become JSON of one flag.

    lines: the line of each key, from 1, of the file that was read last. name: that of the file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}
        self.name = ""

    def place(self, key: str) -> str:
        """File and line of a key."""
        return f"{self.name}, line {self.lines[key]}"

    def parse(self, stream: Iterable[str]) -> dict[str, Any]:
        """Read the file; the values are what the command line would say."""
        import yaml

        self.name = str(getattr(stream, "name", "the file"))
        text = "".join(stream)
        try:
            settings = yaml.safe_load(text) or {}
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError) as error:
            raise configargparse.ConfigFileParserException(f"{self._at(error)} not YAML: {_problem(error)}") from error
        if not isinstance(settings, dict):
            raise configargparse.ConfigFileParserException(
                f"{self.name}: the file must be a map from setting to value, such as `port: 8000`"
            )
        pairs = root.value if root is not None else []
        self.lines = {_key(key.value): key.start_mark.line + 1 for key, _ in pairs}
        return {_key(key): _spell(_key(key), value) for key, value in settings.items() if value is not None}

    def _at(self, error: Exception) -> str:
        mark = getattr(error, "problem_mark", None)
        return f"{self.name}, line {mark.line + 1}:" if mark else f"{self.name}:"


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or str(error).splitlines()[0])


def _key(key: Any) -> str:
    return str(key).replace("_", "-")


def _spell(key: str, value: Any) -> Any:
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value))
    if nested or key == MODELS:
        return json.dumps(value)
    if key == "plugins" and isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
