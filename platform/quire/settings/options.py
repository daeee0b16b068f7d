"""Turns the declared settings into flags, YAML keys and QUIRE_* variables, and parsed values into configs.

Precedence: command line, then environment variables, then the file of --config, then the default.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from quire.errors import ConfigError
from quire.from_vllm.flags import add_vllm_flags
from quire.records import Registry
from quire.settings.flag_parser import ENV_PREFIX, FlagParser
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import flag, json_map, model_config, reader_of, whole_number
from quire.settings.residency_config import seconds
from quire.settings.setting_groups import grouped
from quire.settings.yaml_file import YamlFile


def model_list(text: str) -> list[dict[str, Any]]:
    """Parse --models: a folder, hub id, demo or name=folder, or JSON: a list of these or of objects, or an object from
    name to object (as from `models:` in YAML)."""
    try:
        value = json.loads(text)
    except ValueError as error:
        if text.lstrip().startswith(("{", "[")):
            raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
        value = text
    if isinstance(value, dict):
        value = [
            {"name": name, **(item if isinstance(item, dict) else {"model": item})} for name, item in value.items()
        ]
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(item, dict | str) for item in value):
        raise argparse.ArgumentTypeError("models must be a list of models, or a map from name to settings")
    return [_parse_model(item) if isinstance(item, str) else item for item in value]


def _parse_model(text: str) -> dict[str, Any]:
    """Parse a model given as `path` or `name=path`."""
    name, equals, path = text.partition("=")
    return {"name": name, "model": path} if equals else {"model": text}


def new_parser(prog: str, description: str, *, add_help: bool = True) -> FlagParser:
    """A parser that also reads --config FILE (YAML) and QUIRE_* variables."""
    parser = FlagParser(
        prog=prog,
        description=description,
        add_help=add_help,
        auto_env_var_prefix=ENV_PREFIX,
        config_file_parser_class=YamlFile,
    )
    parser.add_argument("--config", is_config_file_arg=True, metavar="FILE", help="YAML file with settings")
    return parser


def normalize_flags(argv: Sequence[str]) -> list[str]:
    """Replace underscores in flags by dashes: `--max_model_len=5` → `--max-model-len=5`."""
    out: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return [*out, *argv[position:]]
        name, equals, value = word.partition("=")
        out.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
    return out


def add_config(parser: argparse.ArgumentParser, *configs: type, skip: Sequence[str] = ()) -> None:
    """Add a flag for each field of the config classes, under the headings of `quire.settings.setting_groups`."""
    hints = {config: get_type_hints(config) for config in configs}
    settings = {f.name: (f, hints[config][f.name]) for config in configs for f in fields(config)}
    for title, names in grouped(name for name in settings if name not in skip).items():
        group = parser.add_argument_group(title)
        for name in names:
            flags = [flag(alias) for alias in (name, *settings[name][0].metadata["also"])]
            group.add_argument(*flags, dest=name, **_argument(*settings[name]))
    if ModelConfig in configs:
        add_vllm_flags(parser)


def _argument(f: Field[Any], hint: Any) -> dict[str, Any]:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    common = {"help": f.metadata["help"].replace("%", "%%"), "default": default}
    if hint is bool:
        return {**common, "action": argparse.BooleanOptionalAction}
    if hint == tuple[str, ...]:
        return {**common, "nargs": "+", "metavar": f.metadata["metavar"] or "X"}
    if f.metadata["choices"]:
        return {**common, "choices": f.metadata["choices"]}
    return {**common, "type": reader_of(hint), "metavar": f.metadata["metavar"] or _METAVARS[reader_of(hint)]}


_METAVARS: dict[Callable[[str], Any], str] = {
    json_map: "JSON",
    whole_number: "N",
    int: "N",
    float: "X",
    str: "TEXT",
    seconds: "TIME",
}


def add_plugin_options(parser: argparse.ArgumentParser, registry: Registry) -> None:
    """Add flags `--<plugin>.<option>` for the options that the loaded plugins declare."""
    options = registry.by_hook("quire_options")
    group = parser.add_argument_group("options of plugins") if options else parser
    for key, option in options.items():
        kind: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction}
            if option.type is bool
            else {"type": option.type, "metavar": _METAVARS.get(option.type, option.type.__name__.upper())}
        )
        group.add_argument(flag(key), dest=key, default=option.default, help=option.help, **kind)


def plugin_options(values: Mapping[str, Any], registry: Registry) -> dict[str, dict[str, Any]]:
    """The parsed values of plugin options, by plugin and option."""
    given: dict[str, dict[str, Any]] = {}
    for key, option in registry.by_hook("quire_options").items():
        given.setdefault(registry.plugin_of("quire_options", key), {})[option.name] = values[key]
    return given


def model_configs(values: Mapping[str, Any]) -> list[ModelConfig]:
    """The models of a command line: positionals `path` or `name=path`, --model, and --models.

    Flags apply to all models, settings inside --models to that model only. Raises ConfigError for an unknown setting, a
    name used twice, or --served-model-name with several models.
    """
    given = [*(values.get("models_given") or ()), *([values["model"]] if values.get("model") else ())]
    named = [_parse_model(text) for text in given]
    named.extend(dict(item) for item in values.get("models") or ())
    if len(named) > 1 and values.get("served_model_name"):
        raise ConfigError(
            f"--served-model-name is for a single model, but there are {len(named)}: "
            f"{', '.join(str(item.get('name') or item.get('model')) for item in named)}. "
            "Give each model its own name, as in name=path."
        )
    configs = [model_config(values, item) for item in named]
    _check_names(configs)
    return configs


def _check_names(configs: Sequence[ModelConfig]) -> None:
    seen: set[str] = set()
    for config in configs:
        for name in config.served_model_name:
            if name in seen:
                raise ConfigError(f"Two models are named {name!r}; give each model its own name, as in name=path.")
            seen.add(name)
