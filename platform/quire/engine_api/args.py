"""`EngineArgs`: the arguments of `LLM` as a dataclass, and as flags for the command line of a script."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self, TypeVar

from quire.llm.arguments import known_settings
from quire.settings.model_config import ModelConfig
from quire.settings.options import add_config
from quire.settings.residency_config import RESIDENCY_SETTINGS

_Parser = TypeVar("_Parser", bound=argparse.ArgumentParser)


@dataclass(frozen=True, kw_only=True, init=False)
class EngineArgs(ModelConfig):
    """Arguments of `LLM`, validated on construction: the fields of `ModelConfig`, and `LLM`'s own arguments.

    Raises TypeError for an unknown argument, ConfigError for an invalid value.
    """

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
        given = known_settings(settings, "EngineArgs")
        super().__init__(model=model, **given)
        own = {"plugins": plugins, "enable_lora": enable_lora, "plugin_options": plugin_options}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @classmethod
    def add_cli_args(cls, parser: _Parser) -> _Parser:
        """Add a flag for each setting of a model, `--plugins` and `--enable-lora` to the parser, and return it."""
        parser.add_argument("--plugins", metavar="A,B", help="plugins to load (default: the bundled set)")
        parser.add_argument("--enable-lora", action="store_true", help="load the adapter runtime too")
        add_config(parser, ModelConfig, skip=RESIDENCY_SETTINGS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The arguments that a parser with `add_cli_args` has parsed; other attributes are ignored."""
        values = vars(args)
        names = [f.name for f in fields(cls) if f.name in values]
        lists = {name: tuple(values[name]) for name in names if isinstance(values[name], list)}
        return cls(**{**{name: values[name] for name in names}, **lists})

    def to_llm_arguments(self) -> dict[str, Any]:
        """The arguments for `LLM` that differ from its defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not _is_default(f, getattr(self, f.name))}


class AsyncEngineArgs(EngineArgs):
    """Arguments of `AsyncLLMEngine`, equal to those of `LLMEngine`."""


def _is_default(field: Any, value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    return field.default_factory is not MISSING and value == field.default_factory()
