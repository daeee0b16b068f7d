"""What the documentation names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from quire.commands.built_in import BUILT_IN
from quire.hooks import hookspecs
from quire.hooks.registry import load

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))),
    "examples/hook_tour/README.md",
]


SPAN_ATTRIBUTES = set(
    re.findall(r'yield "(quire\.\w+)"', (ROOT / "platform/quire/server/tracing/request_spans.py").read_text())
)


def text(page: str) -> str:
    return (ROOT / page).read_text()


def resolve(dotted: str) -> object:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if error.name and not dotted.startswith(error.name):
                raise
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"no module of {dotted}")


@pytest.mark.parametrize("page", PAGES)
def test_every_symbol_that_is_named_exists(page: str) -> None:
    for dotted in re.findall(r"`((?:quire|quire_\w+)(?:\.\w+)+)`", text(page)):
        if dotted not in SPAN_ATTRIBUTES:
            resolve(dotted)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    body = text(page)
    for target in re.findall(r"\]\(([^)]+)\)", body):
        path, _, anchor = target.partition("#")
        if not target.startswith("https://") and path:
            assert ((ROOT / page).parent / path).exists(), target
        elif anchor and not path:
            headings = re.findall(r"^#+ (.+)$", body, re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}, target


@pytest.mark.parametrize("page", PAGES)
def test_every_example_in_python_parses(page: str) -> None:
    for example in re.findall(r"```python\n(.*?)```", text(page), re.DOTALL):
        if not example.startswith("def quire_"):
            ast.parse(example)


def test_the_readme_shows_the_example_plugin_as_it_is() -> None:
    source = (ROOT / "examples/starcoder_plugin/quire_starcoder2.py").read_text()
    body = source.split('"""\n', 1)[1].strip()
    assert body in text("README.md")


def test_the_readme_lists_every_command_and_no_other() -> None:
    table = text("README.md").split("## The command line")[1].split("\n## ")[0]
    assert re.findall(r"^\| `platform ([\w-]+)` \|", table, re.MULTILINE) == [
        *BUILT_IN,
        *load().by_hook("quire_commands"),
    ]


def test_the_readme_counts_the_hooks_right() -> None:
    assert len([name for name in vars(hookspecs) if name.startswith("quire_")]) == 27
    assert "twenty-seven hooks" in text("README.md")


def test_the_readme_asks_a_demo_model_that_there_is() -> None:
    demos = {demo.name for demo in load().all("quire_demo_models")}
    asked = set(re.findall(r'"?model"?[:=] ?"([\w-]+)"', text("README.md")))
    assert asked <= demos
    assert asked


def test_the_references_for_plugin_authors_and_the_tables_of_models_are_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generating"))
    generate = importlib.import_module("generate")
    stale = [
        f"{file}: {name}"
        for file, name, content in generate.parts()
        if file.startswith(("plugins/", "models"))
        and f"<!-- begin {name} -->\n{content}\n<!-- end {name} -->" not in text(f"docs/{file}")
    ]
    assert not stale, "run `make docs`"
