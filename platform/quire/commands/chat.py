"""`platform chat` and `platform complete`: talk to a running server from the terminal."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
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


def _typed() -> Iterator[str]:
    """Lines from the terminal until end of file."""
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line.strip():
            yield line


def _print_answer(chunks: Iterator[dict[str, Any]], stats: bool) -> str:
    """Print the text of a streamed answer as it comes, and return it."""
    start, text, usage = time.perf_counter(), "", None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
            text += piece or ""
            print(piece or "", end="", flush=True)
    print()
    if stats and usage:
        elapsed = time.perf_counter() - start
        print(f"[{usage['prompt_tokens']} + {usage['completion_tokens']} tokens, {elapsed:.2f} s]")
    return text


def run_chat(args: argparse.Namespace) -> int:
    """Hold a conversation; each answer is streamed."""
    remote = Remote.of(args)
    body = _settings(args, args.model_name or remote.first_model())
    messages = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []
    for line in [args.quick] if args.quick else _typed():
        messages.append({"role": "user", "content": line})
        answer = _print_answer(remote.stream("/chat/completions", {**body, "messages": messages}), args.stats)
        messages.append({"role": "assistant", "content": answer})
    return 0


def run_complete(args: argparse.Namespace) -> int:
    """Complete each line typed; the answer is streamed."""
    remote = Remote.of(args)
    body = _settings(args, args.model_name or remote.first_model())
    for line in [args.quick] if args.quick else _typed():
        _print_answer(remote.stream("/completions", {**body, "prompt": line}), args.stats)
    return 0


CHAT = Command("chat", "chat with a running server", _configure_chat, run_chat)
COMPLETE = Command("complete", "complete text with a running server", _configure, run_complete)
