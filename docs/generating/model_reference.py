"""Tables of models/README.md: the architectures of the bundled plugins, and what the tests compare each with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.hooks.registry import load
from quire.records import Registry

FAMILIES = Path(__file__).parents[2] / "tests" / "helpers" / "families"
ARCHITECTURES = "quire_architectures"


@cache
def _registry() -> Registry:
    return load(None)


def _families(pattern: str) -> list[Any]:
    """Modules of the tests of families."""
    sys.path.insert(0, str(FAMILIES))
    try:
        return [import_module(path.stem) for path in sorted(FAMILIES.glob(f"{pattern}.py"))]
    finally:
        sys.path.remove(str(FAMILIES))


@cache
def _cases() -> Mapping[str, Any]:
    """The cases of the tests of families, by architecture."""
    return {case.architecture: case for file in _families("*_cases") for case in file.CASES}


def _media() -> dict[str, list[str]]:
    """Modalities by architecture."""
    found: dict[str, list[str]] = {}
    for mapper in _registry().all("quire_input_mappers"):
        found.setdefault(mapper.architecture, []).append(mapper.modality)
    return found


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _plugin(name: str) -> str:
    return f"`{_registry().plugin_of(ARCHITECTURES, name)}`"


def _by_plugin(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (_plugin(name), name))


def _is_language_model(name: str) -> bool:
    return name.endswith(("ForCausalLM", "LMHeadModel")) and name not in _media()


def language_models() -> str:
    """Architecture, plugin, the class it is compared with, the modules that adapters are compared on."""
    same_parts = _families("own_code_classes")[0].SAME_PARTS
    rows = []
    for name in _by_plugin(filter(_is_language_model, _registry().by_hook(ARCHITECTURES))):
        case = _cases().get(name)
        other = same_parts.get(name, "")
        compared = f"`{name}`" if case else f"`{other}`, with its tensors renamed" if other else ""
        adapters = ", ".join(f"`{module}`" for module in case.lora) if case else ""
        rows.append((f"`{name}`", _plugin(name), compared, adapters))
    return _table(("architecture", "plugin", "compared with transformers'", "LoRA compared with PEFT on"), rows)


def models_with_media() -> str:
    """Architecture, plugin, modalities."""
    media = _media()
    rows = ((f"`{name}`", _plugin(name), ", ".join(media[name])) for name in _by_plugin(media))
    return _table(("architecture", "plugin", "media"), rows)


def others() -> str:
    """Architectures by plugin that embed, classify, score or fill masks."""
    found: dict[str, list[str]] = {}
    for name in _by_plugin(_registry().by_hook(ARCHITECTURES)):
        if not _is_language_model(name) and name not in _media():
            found.setdefault(_plugin(name), []).append(f"`{name}`")
    return _table(("plugin", "architectures"), ((plugin, ", ".join(names)) for plugin, names in found.items()))
