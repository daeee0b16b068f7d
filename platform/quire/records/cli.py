"""What plugins add to the command line: subcommands, options, and demo models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True)
class Command:
    """A subcommand of `platform`.

    configure: adds the command's arguments to its parser. run: receives the parsed arguments, with the loaded
    registry as `args.registry`, and returns the exit status.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Option:
    """A setting of a plugin: the flag `--<plugin>.<name>`. Its value arrives in `Context.options`."""

    name: str
    type: type
    default: Any
    help: str


@dataclass(frozen=True)
class DemoModel:
    """A small model that ships with a plugin, served when the user names no model.

    folder: returns the path of a model folder in Hugging Face format. adapters, drafts: return the folders of its
    adapters, and of its draft models for speculative decoding, by name.
    """

    name: str
    summary: str
    folder: Callable[[], Path]
    adapters: Callable[[], Mapping[str, Path]] = dict
    drafts: Callable[[], Mapping[str, Path]] = dict
