"""A text that every machine with this version of Python has: the documentation strings of the standard library."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

_WITHOUT = {"site-packages", "test", "tests", "idle_test"}
"""Folders whose modules are not documented for users."""


STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def documentation_strings(library: Path = STANDARD_LIBRARY) -> str:
    """The docstrings of all modules below a folder, their classes and functions, one empty line between them.

    Modules are in the order of their paths, docstrings in the order of the source. Nothing is imported.
    """
    paths = sorted(path.relative_to(library) for path in library.rglob("*.py"))
    wanted = (library / path for path in paths if _WITHOUT.isdisjoint(path.parts))
    return "\n\n".join(text for path in wanted for text in _of_module(path)) + "\n"


def _of_module(path: Path) -> Iterator[str]:
    """The docstrings of one file; none if it is not a valid module, as some templates are not."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(file.read())
    except (SyntaxError, UnicodeDecodeError):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(module) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
        if text:
            yield text
