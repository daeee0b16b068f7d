"""The argument parser of every command: one-line errors, readable defaults, YAML errors with file and line.

`quire.settings.options` adds the flags of the settings.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import configargparse

from quire.errors import ConfigError
from quire.settings.near_names import near_name
from quire.settings.yaml_file import YamlFile

ENV_PREFIX = "QUIRE_"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Appends the default to each help text that does not mention it."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, max_help_position=30, **settings)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", default_text(action.default)
        if not default or "(default:" in text or not action.option_strings or action.default is False:
            return text
        if isinstance(action.default, bool):
            default = "on"
        return f"{text.rstrip('.')} (default: {default})".replace("%", "%%").replace("%%%%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return {None: "TEXT", str: "TEXT", float: "X"}.get(action.type, "N")  # type: ignore[arg-type]


def default_text(value: Any) -> str:
    """The text of a default in the help; empty if there is no default."""
    if value is None or value in ((), [], {}, "") or value is argparse.SUPPRESS:
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


class FlagParser(configargparse.ArgumentParser):  # type: ignore[misc]
    """Reads flags, --config FILE (YAML) and QUIRE_* variables. Errors are one line on stderr, with exit status 2."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(**{"allow_abbrev": False, "add_config_file_help": False, "add_env_var_help": False} | settings)

    @property
    def flags(self) -> list[str]:
        """The long flags, without those that negate another."""
        longs = (s for action in self._actions for s in action.option_strings if s.startswith("--"))
        return [flag for flag in longs if not flag.startswith("--no-")]

    @property
    def env_names(self) -> list[str]:
        """The environment variables that set the flags."""
        return [ENV_PREFIX + flag.removeprefix("--").replace("-", "_").upper() for flag in self.flags]

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None, **rest: Any) -> Any:
        """Parse like argparse; an error for an unknown option suggests a similar one."""
        found, unknown = self.parse_known_args(args, namespace, **rest)
        if unknown:
            self.error(self._unknown(unknown, list(sys.argv[1:] if args is None else args)))
        return found

    def format_help(self) -> str:
        """The help text; its usage line shows only required arguments."""
        required = [action for action in self._actions if not action.option_strings or action.required]
        self.usage = " ".join([self.prog, *map(_usage_of, required), "[options]"]).replace("%", "%%")
        return str(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        origin = self._origin_of(message)
        message = message.removeprefix("argument ").rstrip(".")
        stop = "" if message.endswith("?") else "."
        sentence = f"{origin}{message}{stop}"
        print(f"platform: error: {sentence} See `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(2) from ConfigError(sentence)

    @property
    def _file(self) -> YamlFile:
        file = self._config_file_parser
        assert isinstance(file, YamlFile)
        return file

    def _unknown(self, unknown: Sequence[str], given: Sequence[str]) -> str:
        word = next((word for word in unknown if word.startswith("--")), unknown[0])
        name = word.partition("=")[0]
        key = name.removeprefix("--")
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        if not any(other.partition("=")[0] == name for other in given) and key in self._file.lines:
            near = near_name(key, (flag.removeprefix("--") for flag in self.flags))
            return f"{self._file.location(key)}: unknown setting {key!r}{_did_you_mean(near)}"
        return f"unknown option {name}{_did_you_mean(near_name(name, self._flags_of(given)))}"

    def _flags_of(self, given: Sequence[str]) -> list[str]:
        """The flags of this parser and of the given subcommand."""
        subcommands = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        chosen = [action.choices[word] for action in subcommands for word in given if word in action.choices]
        return [*self.flags, *(flag for parser in chosen[:1] for flag in parser.flags)]

    def _origin_of(self, message: str) -> str:
        """The environment variable or YAML location of the setting that an error is about; "" for the command line."""
        match = re.match(r"argument (--[\w.-]+)", message)
        for source, settings in getattr(self, "_source_to_settings", {}).items() if match else ():
            for key, (action, _) in settings.items():
                if match and action is not None and match[1] in action.option_strings and source != "defaults":
                    return f"{self._file.location(key)}: " if source.startswith("config_file") else f"{key}: "
        return ""


def _usage_of(action: argparse.Action) -> str:
    name = str(action.metavar or (action.option_strings or [action.dest])[0])
    if action.option_strings:
        return f"{action.option_strings[0]} {name}"
    return {"*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def _did_you_mean(near: str | None) -> str:
    return f"; did you mean {near}?" if near else ""


def unknown_variables(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """A warning for each QUIRE_* variable that is not a setting."""
    settings = set(known)
    return [
        f"the environment variable {name} is not a setting and is ignored{_did_you_mean(near_name(name, settings))}"
        for name in sorted(names)
        if name.startswith(ENV_PREFIX) and name not in settings
    ]
