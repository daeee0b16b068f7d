"""Conformance of commands, options and demo models."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from quire import files
from quire.errors import ConfigError
from quire.hooks.adapter_resolver import CONFIG_FILE, MAX_CONFIG_BYTES
from quire.hooks.plugin_options import fill
from quire.records import Command, DemoModel, Option, Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.require import require

NAME = re.compile(r"[a-z][a-z0-9_-]*")
"""Names that can be typed as a command or as a part of a flag."""


def check_command(record: Command, words: Sequence[str] = (), registry: Registry | None = None) -> None:
    """The command parses the words and its own defaults' help, and `run` returns an exit status.

    registry: what `args.registry` holds, with the plugin's options if the command uses them.
    """
    require(NAME.fullmatch(record.name), f"{record.name!r} cannot be typed as a command: use a-z, 0-9, - and _.")
    require(record.help.strip(), f"{record.name} has no help text.")
    parser = argparse.ArgumentParser(prog=f"platform {record.name}", exit_on_error=False)
    result: object = record.configure(parser)  # type: ignore[func-returns-value]
    require(result is None, "configure must add arguments to the parser and return nothing.")
    require(parser.format_help(), "The help cannot be formatted.")
    args = parser.parse_args(list(words))
    require(not hasattr(args, "registry"), "The argument `registry` is Quire's: give yours another name.")
    args.registry = registry or Registry()
    status: object = record.run(args)
    require(type(status) is int, f"run must return the exit status, an int; it returned {status!r:.40}.")


def check_option(record: Option) -> None:
    """The option can be typed as a flag, and its default is a value of its type, also when read from text."""
    flag = f"--plugin.{record.name}"
    require(NAME.fullmatch(record.name), f"{record.name!r} cannot be typed in a flag: use a-z, 0-9, - and _.")
    require(record.help.strip(), f"{flag} has no help text.")
    if record.default is None:
        return
    if isinstance(record.type, type):
        fits = isinstance(record.default, record.type) and (record.type is bool or not isinstance(record.default, bool))
        require(fits, f"The default of {flag} is {record.default!r:.40}, which is not of type {record.type.__name__}.")
    try:
        given = fill({"plugin": {record.name: record}}, {"plugin": {record.name: str(record.default)}})
    except ConfigError as error:
        raise AssertionError(f"The default of {flag} cannot be typed: {error.message}") from error
    found = given["plugin"][record.name]
    require(found == record.default, f"{flag} {record.default} becomes {found!r:.40}, not {record.default!r:.40}.")


def check_demo_model(record: DemoModel) -> None:
    """The folder and those of the adapters are complete, and stay the same from call to call."""
    require(record.summary.strip(), f"{record.name} has no summary.")
    folder = record.folder()
    require(folder == record.folder(), "folder gives another path the second time.")
    require(folder.is_dir(), f"{folder} is no folder; is it part of the package's data?")
    config = files.read_json(folder / "config.json", MAX_CONFIG_BYTES)
    require(config.get("architectures"), f"config.json of {record.name} names no architecture.")
    require(_has_weights(folder), f"{folder} has no weights: *.safetensors or *.bin.")
    Tokenizer.load(folder)
    for name, adapter in record.adapters().items():
        require((adapter / CONFIG_FILE).is_file(), f"The adapter {name} has no {CONFIG_FILE} in {adapter}.")
        kind = files.read_json(adapter / CONFIG_FILE, MAX_CONFIG_BYTES).get("peft_type")
        require(kind, f"{CONFIG_FILE} of the adapter {name} has no peft_type.")
        require(_has_weights(adapter), f"The adapter {name} has no weights: *.safetensors or *.bin.")


def _has_weights(folder: Path) -> bool:
    return any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())
