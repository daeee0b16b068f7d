"""The blocks of code in the documentation, and which of them tests run.

A block is run, unless a comment before it says why not: `<!-- not run: it needs a model of yours -->`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from paths import ROOT

PAGES = tuple(["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))])
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run: (.+?) -->\n\Z")
_FILE = re.compile(r"`\./([\w.]+)`:\n\n\Z")
_SHOWN = re.compile(r"\n\n```text\n(.*?)^```\n(\n\(shortened\))?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CodeBlock:
    """One block. line: of its page, from 1. why_not: the reason why it is not run, "" if it is.

    file: the name of the file that it is, if the text before it says so. is_cut: the text after it says `(shortened)`.
    shown: the block of text after it, which has what it prints; shown_is_cut: not all of that.
    """

    page: str
    line: int
    language: str
    code: str
    why_not: str
    file: str
    is_cut: bool
    shown: str
    shown_is_cut: bool

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def code_blocks(page: str) -> Iterator[CodeBlock]:
    """The blocks of a page, without those that are generated."""
    text = (ROOT / page).read_text()
    text = re.sub(r"<!-- begin .*?<!-- end ", lambda found: "\n" * found.group(0).count("\n"), text, flags=re.DOTALL)
    for found in _BLOCK.finditer(text):
        before = text[: found.start()]
        mark, file, shown = _MARK.search(before), _FILE.search(before), _SHOWN.match(text, found.end())
        yield CodeBlock(
            page=page,
            line=before.count("\n") + 1,
            language=found.group(1),
            code=found.group(2),
            why_not=mark.group(1) if mark else "",
            file=file.group(1) if file else "",
            is_cut=text.startswith("\n\n(shortened)", found.end()),
            shown=shown.group(1) if shown else "",
            shown_is_cut=bool(shown and shown.group(2)),
        )


def command_lines(code: str) -> Iterator[list[str]]:
    """The words after `platform` of each such command in lines of a shell."""
    for line in re.findall(r"^platform (.*)$", code.replace("\\\n", " "), re.MULTILINE):
        words = shlex.split(line, comments=True)
        ends = [at for at, word in enumerate(words) if word in ("|", "&", "<", ">", ">>")]
        yield words[: min(ends, default=len(words))]
