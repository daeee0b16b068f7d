"""Prints a streamed response as it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quire.commands.terminal_text import visible
from quire.errors import QuireError


@dataclass(frozen=True)
class PrintedResponse:
    """A response that was printed. interrupted: the user stopped it with Ctrl-C."""

    text: str
    interrupted: bool = False


def print_response(chunks: Iterator[dict[str, Any]], stats: bool) -> PrintedResponse:
    """Print a streamed response as it arrives, with the reasoning before the text; Ctrl-C stops it."""
    start, usage, printer = time.perf_counter(), None, _Printer()
    try:
        for chunk in chunks:
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice.get("delta", {})
                printer.reasoning(delta.get("reasoning") or delta.get("reasoning_content") or "")
                printer.content(delta.get("content") or choice.get("text") or "")
                printer.tool_calls(delta.get("tool_calls") or ())
    except KeyboardInterrupt:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()  # ends the connection, so that the server stops generating
        printer.end()
        return PrintedResponse(printer.text, interrupted=True)
    except QuireError:
        if printer.has_printed:
            printer.end()
        raise
    printer.end()
    if stats and usage:
        elapsed = time.perf_counter() - start
        speed = usage["completion_tokens"] / elapsed if elapsed else 0.0
        print(
            f"[{usage['prompt_tokens']} + {usage['completion_tokens']} tokens, {elapsed:.2f} s, {speed:.1f} tokens/s]"
        )
    return PrintedResponse(printer.text)


class _Printer:
    """Prints text as it arrives. On a terminal reasoning is dim, and control characters are made visible."""

    def __init__(self) -> None:
        self.text = ""
        self._terminal = sys.stdout.isatty()
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if self._terminal else ("", "")
        self._section = ""

    def reasoning(self, text: str) -> None:
        """Print a piece of reasoning, which is not part of the text."""
        if text:
            self._begin("reasoning")
            self._write(text, self._dim, self._plain)

    def content(self, text: str) -> None:
        """Print a piece of the text."""
        if text:
            self._begin("content")
            self.text += text
            self._write(text)

    def tool_calls(self, deltas: Any) -> None:
        """Print pieces of tool calls: a name, then arguments."""
        for delta in deltas:
            function = delta.get("function") or {}
            if name := function.get("name"):
                self._begin(f"call {delta.get('index', 0)}")
                self._write(f"[{name}] ", self._dim, self._plain)
            if arguments := function.get("arguments"):
                self._write(arguments)

    @property
    def has_printed(self) -> bool:
        return bool(self._section)

    def end(self) -> None:
        """End the line that is being printed."""
        print(flush=True)

    def _begin(self, section: str) -> None:
        if self._section not in ("", section):
            print("\n")
        self._section = section

    def _write(self, text: str, before: str = "", after: str = "") -> None:
        shown = visible(text) if self._terminal else text.encode(errors="replace").decode()
        print(f"{before}{shown}{after}", end="", flush=True)
