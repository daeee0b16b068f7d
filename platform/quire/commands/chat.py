"""`platform chat` and `platform complete`: use a running server from the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quire.commands.remote import OpenAIServer, add_remote_flags
from quire.records import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    add_remote_flags(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="send one message, print the response and exit")
    parser.add_argument("--max-tokens", type=int, default=None, help="maximum number of tokens per response")
    parser.add_argument(
        "--temperature", type=float, default=None, help="sampling temperature; 0: always the most likely token"
    )
    parser.add_argument("--stats", action="store_true", help="print token counts and seconds after each response")


def _configure_chat(parser: argparse.ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("--system-prompt", default=None, help="system message at the start of the conversation")


def _settings(args: argparse.Namespace, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "stream_options": {"include_usage": True}}
    for name in ("max_tokens", "temperature"):
        if getattr(args, name) is not None:
            body[name] = getattr(args, name)
    return body


def _input_lines(greeting: str) -> Iterator[str]:
    """Lines until end of file: from the terminal, with a prompt and line editing, or from a pipe."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  (adds line editing and history to `input`)
        print(f"{greeting} (Ctrl-D exits, Ctrl-C stops a response)", file=sys.stderr)
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
class _Response:
    """A printed response. interrupted: the user stopped it with Ctrl-C."""

    text: str
    interrupted: bool = False


def _print_response(chunks: Iterator[dict[str, Any]], stats: bool) -> _Response:
    """Print a streamed response as it arrives, with the reasoning before the text; Ctrl-C stops it."""
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
        return _Response(printer.text, interrupted=True)
    printer.end()
    if stats and usage:
        elapsed = time.perf_counter() - start
        print(f"[{usage['prompt_tokens']} + {usage['completion_tokens']} tokens, {elapsed:.2f} s]")
    return _Response(printer.text)


class _Printer:
    """Prints text as it arrives; reasoning is dim on a terminal and separated by a blank line."""

    def __init__(self) -> None:
        self.text = ""
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        self._in_reasoning = False

    def reasoning(self, text: str) -> None:
        if text:
            print(f"{self._dim}{text}{self._plain}", end="", flush=True)
            self._in_reasoning = True

    def content(self, text: str) -> None:
        if text and self._in_reasoning:
            print("\n")
            self._in_reasoning = False
        self.text += text
        print(text, end="", flush=True)

    def end(self) -> None:
        print()


def run_chat(args: argparse.Namespace) -> int:
    """Run a conversation; responses are streamed."""
    remote = OpenAIServer.from_args(args)
    body = _settings(args, args.model_name or remote.first_model())
    messages = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []
    for line in [args.quick] if args.quick else _input_lines(f"Chat with {body['model']} at {remote.url}"):
        messages.append({"role": "user", "content": line})
        response = _print_response(remote.stream("/chat/completions", {**body, "messages": messages}), args.stats)
        messages.append({"role": "assistant", "content": response.text})
        if response.interrupted and args.quick:
            return 130
    return 0


def run_complete(args: argparse.Namespace) -> int:
    """Complete each input line; completions are streamed."""
    remote = OpenAIServer.from_args(args)
    body = _settings(args, args.model_name or remote.first_model())
    for line in [args.quick] if args.quick else _input_lines(f"Completions by {body['model']} at {remote.url}"):
        response = _print_response(remote.stream("/completions", {**body, "prompt": line}), args.stats)
        if response.interrupted and args.quick:
            return 130
    return 0


CHAT = Command("chat", "chat with a running server", _configure_chat, run_chat)
COMPLETE = Command("complete", "complete text with a running server", _configure, run_complete)
