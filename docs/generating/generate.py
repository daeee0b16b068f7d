"""Rewrites the generated parts of the documentation: `make docs`. A test checks that they are current.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. In hooks.md it is the
signature of each hook, in serving.md the table of settings of each config class, in from_vllm.md what vLLM has, in
models/ the tables of `model_reference`, and in plugins/ the references of `plugin_reference`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import model_reference
import plugin_reference

from quire.from_vllm import arguments, variables as of_environment
from quire.hooks import hookspecs
from quire.settings import model_config as config, near_names, server_config
from quire.settings.model_values import flag

DOCS = Path(__file__).parents[1]


def hooks() -> dict[str, Callable[..., Any]]:
    """Every hook, by name, in the order of hookspecs.py."""
    return {name: thing for name, thing in vars(hookspecs).items() if name.startswith("quire_")}


def signature(hook: Callable[..., Any]) -> str:
    """How an implementation's first line reads, on one line."""
    return f"def {hook.__name__}{inspect.signature(hook)}".replace("'", "")


def settings(cls: type) -> str:
    """A table of a config class: flag, default, what it does."""
    rows = [f"| `{flag(f.name)}` | {_default(f)} | {_help(f)} |" for f in fields(cls)]
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows])


def _default(f: Any) -> str:
    value = f.default_factory() if f.default is MISSING else f.default
    if value is None or value in ((), {}, ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(value) if isinstance(value, tuple) else value}`"


def _help(f: Any) -> str:
    choices = f.metadata["choices"]
    one_of = f" One of {', '.join(f'`{c}`' for c in choices)}." if choices else ""
    return f"{f.metadata['help']}{one_of}"


def renamed() -> str:
    """Settings of vLLM with another name here."""
    rows = [f"| `{flag(theirs)}` | `{flag(ours)}` |" for theirs, ours in sorted(near_names.RENAMED.items())]
    return "\n".join(["| vLLM | Quire |", "|---|---|", *rows])


def accepted(table: Mapping[str, arguments.Accepted], shown_name: Callable[[str], str] = flag) -> str:
    """Arguments of vLLM that are no settings here."""
    rows = []
    for name, argument in sorted(table.items()):
        words = {None: "left out", False: "off", True: "on"} if argument.is_switch else {None: "left out"}
        shown = [words.get(v, f"`{v}`") if v is None or isinstance(v, bool) else f"`{v}`" for v in argument.values]
        rows.append(f"| `{shown_name(name)}` | {', '.join(shown) or 'any'} | {argument.why} |")
    return "\n".join(["| vLLM | accepted | why |", "|---|---|---|", *rows])


def variables() -> str:
    """Environment variables of vLLM and what does the same."""
    rows = []
    for name in sorted({*of_environment.SETTINGS, *of_environment.ELSEWHERE}):
        text = of_environment.replacement(name)
        rows.append(f"| `{name}` | {f'`{text}`' if name in of_environment.SETTINGS else text} |")
    return "\n".join(["| vLLM | here |", "|---|---|", *rows])


def parts() -> Iterator[tuple[str, str, str]]:
    """(file, name of the part, its text)."""
    for name, hook in hooks().items():
        yield "hooks.md", name, f"```python\n{signature(hook)}\n```"
    yield "serving.md", "model settings", settings(config.ModelConfig)
    yield "serving.md", "server settings", settings(server_config.ServerConfig)
    yield "from_vllm.md", "renamed settings", renamed()
    yield "from_vllm.md", "accepted arguments", accepted(arguments.ARGUMENTS)
    yield "from_vllm.md", "keys of speculative-config", accepted(arguments.SPECULATIVE_KEYS, str)
    yield "from_vllm.md", "variables", variables()
    yield "models/README.md", "language models", model_reference.language_models()
    yield "models/README.md", "models with media", model_reference.models_with_media()
    yield "models/README.md", "encoders and others", model_reference.others()
    yield "plugins/parts.md", "parts", plugin_reference.parts()
    yield "plugins/parts.md", "fields of configs", plugin_reference.fields_of_configs()
    yield "plugins/weights.md", "names of parameters", plugin_reference.names()
    yield "plugins/records.md", "records and protocols", plugin_reference.records_and_protocols()


def filled(text: str, name: str, content: str) -> str:
    """`text` with the part replaced. Raises ValueError if the markers are missing."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no part {name!r}: {begin} … {end} is missing")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def main() -> None:
    """Rewrite every part in place."""
    for file, name, content in parts():
        path = DOCS / file
        path.write_text(filled(path.read_text(), name, content))


if __name__ == "__main__":
    main()
