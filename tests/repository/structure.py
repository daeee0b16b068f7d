"""Measures the repository: sizes of folders and files, import circles, class names, words, docstrings.

python tests/repository/structure.py            one line for each measure; exit status 1 if one is over its limit
python tests/repository/structure.py --list     and every place
python tests/repository/structure.py --list platform/quire/engine    every place below a folder
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("platform", "kernels", "models", "adapters", "plugins")
MAX_FILES, MAX_LINES = 15, 300
CODE = (".py", ".hpp", ".cpp")
WORDS = [
    "seat",
    "chair",
    "party",
    "roster",
    "flight",
    "desk",
    "humble",
    "hopeless",
    "told",
    "untold",
    "lane",
    "nobody",
    "whoever",
    "somebody",
]
ENDINGS = ("", "s", "es", "ed", "ing")
FORMS = {word + ending: word for word in WORDS for ending in ENDINGS} | {"parties": "party"}
ACCEPTED = re.compile(r"third[- _]part(y|ies)|in[- _]?flight|preflight", re.IGNORECASE)
"""Standard terms that contain one of the words."""
SIMD = ("kernels/quire_kernels/cpu/", "plugins/quire_bench/profiling/")
"""Where a lane is a lane of a vector register."""
NAMES_THE_WORDS = ("tests/repository/structure.py",)
STUB = re.compile(r"(See|As|The same)\b")

Finding = tuple[str, int, str]
"""File, line, and what is there."""


def tracked() -> list[str]:
    out = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    return [name for name in out.splitlines() if (ROOT / name).is_file()]


def is_source(name: str) -> bool:
    return name.startswith(tuple(f"{root}/" for root in SOURCE_ROOTS))


def large_folders(files: list[str]) -> Iterator[Finding]:
    counts = Counter(str(Path(name).parent) for name in files if name.endswith((*CODE, ".md")))
    yield from ((folder, 0, f"{count} files") for folder, count in sorted(counts.items()) if count > MAX_FILES)


def long_files(files: list[str]) -> Iterator[Finding]:
    for name in files:
        if name.endswith(CODE) and (lines := (ROOT / name).read_text().count("\n")) > MAX_LINES:
            yield name, 0, f"{lines} lines"


def module_of(name: str) -> str:
    return name.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_at_run_time(tree: ast.Module) -> Iterator[str]:
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            waiting += list(ast.iter_child_nodes(node))


def import_circles(files: list[str]) -> Iterator[Finding]:
    trees = {module_of(name): parsed(name) for name in files if is_source(name) and name.endswith(".py")}
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        longest = (next((p for p in prefixes(target) if p in trees), None) for target in imports_at_run_time(tree))
        graph[module] = {target for target in longest if target and target != module}
    done: set[str] = set()
    for start in sorted(graph):
        yield from ((" -> ".join(circle), 0, "") for circle in circles_from(start, graph, done))


def prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(len(parts), 0, -1))


def circles_from(start: str, graph: dict[str, set[str]], done: set[str]) -> Iterator[list[str]]:
    """Circles on paths from `start` that no earlier start has been through."""
    path: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        if module in path:
            yield [*path[path.index(module) :], module]
        elif module not in done:
            path.append(module)
            for target in sorted(graph[module]):
                yield from visit(target)
            path.pop()
            done.add(module)

    yield from visit(start)


def repeated_classes(files: list[str]) -> Iterator[Finding]:
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name in files:
        if is_source(name) and name.endswith(".py"):
            for node in ast.walk(parsed(name)):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append((name, node.lineno))
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield from ((file, line, f"class {name}") for file, line in found)


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text())


def odd_words(text: str, name: str) -> Iterator[str]:
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", ACCEPTED.sub("", text)):
        found = FORMS.get(word.lower())
        if found and not (found == "lane" and name.startswith(SIMD)):
            yield found


def tokens(name: str) -> Iterator[tokenize.TokenInfo]:
    yield from tokenize.generate_tokens(io.StringIO((ROOT / name).read_text()).readline)


def odd_identifiers(files: list[str]) -> Iterator[Finding]:
    for name in files:
        for word in odd_words(Path(name).stem, name):
            yield name, 0, f"file name: {word}"
        if name.endswith(".py") and name not in NAMES_THE_WORDS:
            for token in tokens(name):
                if token.type == tokenize.NAME and any(odd_words(token.string, name)):
                    yield name, token.start[0], token.string


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of texts that stand alone: docstrings of modules, classes, functions and attributes."""
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return {line for text in texts if isinstance(text.value, str) for line in range(text.lineno, text.end_lineno + 1)}


def odd_prose(files: list[str]) -> Iterator[Finding]:
    """Comments, docstrings, documents; in source also other texts: errors, help, log lines."""
    for name in files:
        if name in NAMES_THE_WORDS or name.startswith(".") or "/demo_" in name.removeprefix("examples"):
            continue
        if name.endswith((".md", ".hpp", ".cpp")):
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                yield from ((name, number, f"{word}: {line.strip()}") for word in odd_words(line, name))
        elif name.endswith(".py"):
            own = docstring_lines(parsed(name))
            for token in tokens(name):
                text = token.type == tokenize.STRING and (is_source(name) or token.start[0] in own)
                if token.type == tokenize.COMMENT or text:
                    for number, line in enumerate(token.string.splitlines(), token.start[0]):
                        yield from ((name, number, f"{word}: {line.strip()}") for word in odd_words(line, name))


def empty_docstrings(files: list[str]) -> Iterator[Finding]:
    for name in files:
        if is_source(name) and name.endswith(".py"):
            for node in ast.walk(parsed(name)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                    text = ast.get_docstring(node) or ""
                    if text and (len(text.split()) <= 3 or STUB.match(text)):
                        yield name, getattr(node, "lineno", 1), text.splitlines()[0]


MEASURES = {
    f"folders with more than {MAX_FILES} files": large_folders,
    f"files with more than {MAX_LINES} lines": long_files,
    "import circles": import_circles,
    "class names defined more than once": repeated_classes,
    "identifiers with a word that is not the field's": odd_identifiers,
    "lines of prose with such a word": odd_prose,
    "docstrings of three words or fewer, or beginning with See, As, The same": empty_docstrings,
}


def main(arguments: list[str]) -> int:
    listed, below = "--list" in arguments, tuple(word for word in arguments if word != "--list")
    files, total = tracked(), 0
    for what, measure in MEASURES.items():
        found = [finding for finding in measure(files) if not below or finding[0].startswith(below)]
        total += len(found)
        print(f"{len(found):5}  {what}")
        if listed:
            for file, line, text in found:
                print(f"       {file}:{line}: {text}" if line else f"       {file}: {text}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
