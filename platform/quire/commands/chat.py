"""`platform chat` and `platform complete`: talk to a running server from the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quire.commands.remote import Remote, add_remote_flags
from quire.records import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    add_remote_flags(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="send one message, print the answer, leave")
    parser.add_argument("--max-tokens", type=int, default=None, help="longest answer in tokens")
    parser.add_argument("--temperature", type=float, default=None, help="0 is greedy")
    parser.add_argument("--stats", action="store_true", help="print tokens and seconds after each answer")


def _configure_chat(parser: argparse.ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("--system-prompt", default=None, help="first message of the conversation")


def _settings(args: argparse.Namespace, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "stream_options": {"include_usage": True}}
    for name in ("max_tokens", "temperature"):
        if getattr(args, name) is not None:
            body[name] = getattr(args, name)
    return body


def _typed(about: str) -> Iterator[str]:
    """Lines from the terminal, with a prompt and editing, or from a pipe, without; until end of file."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  (arrow keys and the lines typed before, in `input`)
        print(f"{about} (Ctrl-D leaves, Ctrl-C ends an answer)", file=sys.stderr)
    while True:
        try:
            line = input("> " if terminal else "")
        except (EOFError, KeyboardInterrupt):
            if terminal:
                print()
            return
        if line.strip():
            yield line


@dataclass(frozen=True)
class _Answer:
    """What was printed. interrupted: by Ctrl-C, before its end."""

    text: str
    interrupted: bool = False


def _print_answer(chunks: Iterator[dict[str, Any]], stats: bool) -> _Answer:
    """Print the text of a streamed answer as it comes, reasoning before it; Ctrl-C ends it."""
    start, usage, printer = time.perf_counter(), None, _Printer()
    try:
        for chunk in chunks:
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice.get("delta", {})
                printer.reasoning(delta.get("reasoning") or delta.get("reasoning_content") or "")
                printer.content(delta.get("content") or choice.get("text") or "")
    except KeyboardInterrupt:
        printer.end()
        return _Answer(printer.text, interrupted=True)
    printer.end()
    if stats and usage:
        elapsed = time.perf_counter() - start
        print(f"[{usage['prompt_tokens']} + {usage['completion_tokens']} tokens, {elapsed:.2f} s]")
    return _Answer(printer.text)


class _Printer:
    """Prints pieces as they come; reasoning is dim on a terminal, and stands in lines of its own."""

    def __init__(self) -> None:
        self.text = ""
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        self._reasons = False

    def reasoning(self, piece: str) -> None:
        if piece:
            print(f"{self._dim}{piece}{self._plain}", end="", flush=True)
            self._reasons = True

    def content(self, piece: str) -> None:
        if piece and self._reasons:
            print("\n")
            self._reasons = False
        self.text += piece
        print(piece, end="", flush=True)

    def end(self) -> None:
        print()


def run_chat(args: argparse.Namespace) -> int:
    """Hold a conversation; each answer is streamed."""
    remote = Remote.of(args)
    body = _settings(args, args.model_name or remote.first_model())
    messages = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []
    for line in [args.quick] if args.quick else _typed(f"Chat with {body['model']} at {remote.url}"):
        messages.append({"role": "user", "content": line})
        answer = _print_answer(remote.stream("/chat/completions", {**body, "messages": messages}), args.stats)
        messages.append({"role": "assistant", "content": answer.text})
        if answer.interrupted and args.quick:
            return 130
    return 0


def run_complete(args: argparse.Namespace) -> int:
    """Complete each line typed; the answer is streamed."""
    remote = Remote.of(args)
    body = _settings(args, args.model_name or remote.first_model())
    for line in [args.quick] if args.quick else _typed(f"Completions by {body['model']} at {remote.url}"):
        answer = _print_answer(remote.stream("/completions", {**body, "prompt": line}), args.stats)
        if answer.interrupted and args.quick:
            return 130
    return 0


CHAT = Command("chat", "chat with a running server", _configure_chat, run_chat)
COMPLETE = Command("complete", "complete text with a running server", _configure, run_complete)
