"""`EngineArgs`: the arguments of `LLM` as a record, and as flags of a script's command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self, TypeVar

from quire.config import ModelConfig
from quire.options import add_config
from quire.text.arguments import known_settings

_Parser = TypeVar("_Parser", bound=argparse.ArgumentParser)

_OWN = ("plugins", "enable_lora", "plugin_options")


@dataclass(frozen=True, kw_only=True, init=False)
class EngineArgs(ModelConfig):
    """What `LLM` takes, checked when it is made; fields beside those of `ModelConfig` are as there."""

    plugins: Sequence[str] | str | None = None
    enable_lora: bool = False
    plugin_options: Mapping[str, Mapping[str, Any]] | None = None

    def __init__(
        self,
        model: str,
        *,
        plugins: Sequence[str] | str | None = None,
        enable_lora: bool = False,
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """Raises TypeError for an unknown argument, ConfigError for a value that cannot be."""
        given = known_settings(settings, "EngineArgs")
        super().__init__(model=model, **given)
        own = {"plugins": plugins, "enable_lora": enable_lora, "plugin_options": plugin_options}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @classmethod
    def add_cli_args(cls, parser: _Parser) -> _Parser:
        """Add a flag for each setting of a model, `--plugins` and `--enable-lora`; the same parser."""
        parser.add_argument("--plugins", metavar="A,B", help="plugins to load (default: the bundled set)")
        parser.add_argument("--enable-lora", action="store_true", help="load the adapter runtime too")
        add_config(parser, ModelConfig)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Those that a parser with `add_cli_args` has read; other attributes are left alone."""
        values = vars(args)
        names = [f.name for f in fields(cls) if f.name in values]
        lists = {name: tuple(values[name]) for name in names if isinstance(values[name], list)}
        return cls(**{**{name: values[name] for name in names}, **lists})

    def for_llm(self) -> dict[str, Any]:
        """Arguments of `LLM`: those that differ from its defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not _is_default(f, getattr(self, f.name))}


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLMEngine`."""


def _is_default(field: Any, value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    return field.default_factory is not MISSING and value == field.default_factory()
