"""The contract as a whole: every hook is documented, implemented somewhere and tested."""

import ast
import builtins
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire import plugin as exported, records
from quire.hooks import hookspecs
from quire.hooks.registry import load
from quire.records import RECORDS

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "hooks.md").read_text()
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("quire_")}


class StandIn(type):
    """Makes classes that may be called, and have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Names(dict[str, Any]):
    """The names that an example sees: those of `quire.plugin`, and a stand-in for each that it leaves out."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return getattr(exported, name, None) or StandIn(name, (), {"__init__": lambda self, *args, **more: None})


def signature(name: str) -> str:
    return f"def {name}{inspect.signature(HOOKS[name])}".replace("'", "")


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_with_its_exact_signature_and_an_example(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert section, f"docs/hooks.md has no section {name}"
    signature_block, *examples = re.findall(r"```python\n(.*?)```", section.group(1), re.DOTALL)
    assert signature_block == f"{signature(name)}\n", "run `make docs`"
    assert any(f"def {name}(" in example and "@hookimpl" in example for example in examples)
    found: dict[str, Any] = Names({**vars(exported), "Path": Path, "__file__": __file__})
    for example in examples:
        exec(compile(example, f"hooks.md, {name}", "exec"), found)
    if name in RECORDS:
        assert all(isinstance(record, RECORDS[name]) for record in found[name]())


def test_the_documentation_has_no_section_for_a_hook_that_is_not_there() -> None:
    assert set(re.findall(r"^### (quire_\w+)$", DOCS, re.MULTILINE)) == set(HOOKS)


def test_every_hook_has_a_docstring_and_every_noun_a_record() -> None:
    assert all(inspect.getdoc(hook) for hook in HOOKS.values())
    nouns = {name for name, hook in HOOKS.items() if "Iterable" in str(inspect.signature(hook).return_annotation)}
    assert nouns == set(RECORDS)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_test(name: str) -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_hooks_*.py"))
    assert re.search(rf"^(async )?def test_hook_{name.removeprefix('quire_')}_", tests, re.MULTILINE)


def test_every_hook_has_an_implementation() -> None:
    implemented = {
        node.name
        for folder in ("plugins", "adapters", "examples")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and any("hookimpl" in ast.dump(d) for d in node.decorator_list)
    }
    assert not set(HOOKS) - implemented


def test_the_bundled_plugins_are_the_documented_ones() -> None:
    table = DOCS.split("## Bundled plugins")[1].split("\n## ")[0]
    documented = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", table, re.MULTILINE))
    loaded = {plugin.name: plugin for plugin in load(enable_lora=True).plugins}
    assert set(documented) <= set(loaded)
    models = (ROOT / "docs" / "models" / "README.md").read_text()
    for name, plugin in loaded.items():
        architectures = plugin.records.get("quire_architectures", ())
        assert name in documented or (architectures and f"| `{name}` |" in models), name
        for architecture in architectures:
            assert f"`{architecture}`" in models


@pytest.mark.process
def test_the_settings_are_documented_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import generate; [print(f, n, sep='|') for f, n, text in generate.parts()"
         " if generate.filled((t := (generate.DOCS / f).read_text()), n, text) != t]"],
        cwd=ROOT / "docs" / "generating", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "", "run `make docs`"


def test_the_contract_version_in_the_documentation_is_the_one_offered() -> None:
    major, minor = records.CONTRACT_VERSION
    assert f"This is contract {major}.{minor}." in DOCS
