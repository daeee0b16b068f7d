"""Hooks of mkdocs: files of the repository that a page links to, such as examples, become pages of the site.

The site begins with the README of the repository. The page of a folder shows the folder's README, or its files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCES = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".jinja": "jinja", ".toml": "toml", ".json": "json", ".yml": "yaml", ".sh": "sh"}
FIRST_PAGE = "README.md"
FOLDER = "files"
"""Folder of the site for files from outside docs/."""


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files, and replace docs/README.md, a table of contents, by the README of the repository."""
    first = files.get_file_from_path(FIRST_PAGE)
    if first is not None:
        files.remove(first)
    files.append(File.generated(config, FIRST_PAGE, content=(ROOT / "README.md").read_text()))
    waiting = {target for file in files.documentation_pages() for target in _outside(file.src_uri, file.content_string)}
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        content = _page(path)
        name = _page_name(path)
        files.append(File.generated(config, name, content=content))
        waiting |= set(_outside(name, content)) - done
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside docs/ lead to their pages."""
    source = page.file.src_uri

    def rewritten(match: re.Match[str]) -> str:
        path = _repository_path(source, match[1])
        name = path.removeprefix("docs/") if path.startswith("docs/") else _page_name(path)
        if path in ("README.md", "docs/README.md"):
            name = FIRST_PAGE
        target = os.path.relpath(name, PurePosixPath(source).parent)
        return f"]({target}{match[2] or ''})"

    parts = FENCES.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts)


def _outside(source: str, markdown: str) -> list[str]:
    """Paths in the repository of the linked files that are not in docs/."""
    text = FENCES.sub("", markdown)
    paths = [_repository_path(source, match[1]) for match in LINK.finditer(text)]
    return [path for path in paths if not path.startswith("docs/") and path != "README.md"]


def _repository_path(source: str, target: str) -> str:
    """The path, from the root of the repository, of a link on the page `source` of the site."""
    if source == FIRST_PAGE:
        folder = PurePosixPath(".")
    elif source.startswith(f"{FOLDER}/"):
        path = PurePosixPath(source).relative_to(FOLDER).with_suffix("")
        folder = path if (ROOT / path).is_dir() else path.parent
    else:
        folder = PurePosixPath("docs") / PurePosixPath(source).parent
    path = os.path.normpath(folder / target)
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{source} links to {target}, which does not exist.")
    return f"{path}/README.md" if path.startswith("docs") and (ROOT / path).is_dir() else path


def _page_name(path: str) -> str:
    """The page of the site for a file or folder of the repository."""
    path = path.removesuffix("/README.md")
    return f"{FOLDER}/{path}.md"


def _page(path: str) -> str:
    """The text of the page for a file or folder."""
    file = ROOT / path
    if file.is_dir():
        readme = file / "README.md"
        if readme.exists():
            return readme.read_text()
        names = sorted(one.name for one in file.iterdir() if one.is_file() and not one.name.startswith("."))
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    if file.suffix == ".md":
        return file.read_text()
    if file.suffix in LANGUAGES or not file.suffix:
        return f"# {path}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````\n"
    return f"# {path}\n\n{file.stat().st_size} bytes\n"
