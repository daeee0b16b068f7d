"""The commands `chat` and `complete`: flags, and the choice between terminal and pipe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.commands.chat.conversation import TerminalConversation
from quire.commands.chat.printing import print_response
from quire.commands.remote import OpenAIServer, add_remote_flags
from quire.records import Command

CHAT_DESCRIPTION = """\
Chat with a running server.

On a terminal: Enter sends, Alt-Enter or a backslash before Enter begins a new line, the arrow keys edit and go
through the history, Tab completes. Ctrl-C stops a response, Ctrl-D ends. `@PATH` in a message attaches a
picture. /help lists the commands. In a pipe, each line is sent as a message, and nothing in it is interpreted.

examples:
  platform chat
  platform chat --url http://192.168.0.5:8000 --model demo-tools
  platform chat -q "What is in the picture?" --image picture.png --model demo-llava
  cat questions.txt | platform chat --temperature 0"""


COMPLETE_DESCRIPTION = """\
Complete text with a running server: the model continues a prompt, without a chat template.

On a terminal it has the keys of `platform chat`. In a pipe, each line is a prompt.

examples:
  platform complete
  platform complete -q "The capital of Arvia is" --max-tokens 8
  cat prompts.txt | platform complete --temperature 0"""


def _configure(parser: argparse.ArgumentParser, text: str = "message") -> None:
    add_remote_flags(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help=f"send one {text}, print the response and exit")
    parser.add_argument("--max-tokens", type=int, default=None, help="maximum number of tokens per response")
    parser.add_argument(
        "--temperature", type=float, default=None, help="sampling temperature; 0: always the most likely token"
    )
    parser.add_argument("--stats", action="store_true", help="print token counts and seconds after each response")
    history = (
        'file that keeps what was typed; "": none (default: chat-history or complete-history in ~/.local/state/quire)'
    )
    parser.add_argument("--history-file", metavar="FILE", default=None, help=history)


def _configure_chat(parser: argparse.ArgumentParser) -> None:
    parser.description = CHAT_DESCRIPTION
    _configure(parser)
    parser.add_argument("--system-prompt", default=None, help="system message at the start of the conversation")
    picture = "picture for the first message: a file, or a URL that the server may fetch; may be given several times"
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help=picture)


def _configure_complete(parser: argparse.ArgumentParser) -> None:
    parser.description = COMPLETE_DESCRIPTION
    _configure(parser, "prompt")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"stream_options": {"include_usage": True}}
    for name in ("max_tokens", "temperature"):
        if getattr(args, name) is not None:
            body[name] = getattr(args, name)
    return body


def _input_lines() -> Iterator[str]:
    """Lines of the standard input that are not blank."""
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\n")


def _on_terminal(args: argparse.Namespace) -> bool:
    return not args.quick and sys.stdin.isatty() and sys.stdout.isatty()


def history_path(args: argparse.Namespace, name: str) -> Path | None:
    """The file for what was typed into a command; None: it is not kept."""
    if args.history_file is not None:
        return Path(args.history_file).expanduser() if args.history_file else None
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "quire" / f"{name}-history"


def run_chat(args: argparse.Namespace) -> int:
    """Run a conversation; responses are streamed. Raises RemoteError and ConfigError."""
    remote = OpenAIServer.from_args(args)
    talk = TerminalConversation(args.model_name or remote.first_model(), _settings(args), args.system_prompt)
    for picture in args.image:
        talk.attach(picture)
    if _on_terminal(args):
        from quire.commands.chat.session import ChatSession

        return ChatSession(remote, talk, args.stats).run(history_path(args, "chat"))
    for line in [args.quick] if args.quick else _input_lines():
        response = print_response(remote.stream("/chat/completions", talk.ask(line)), args.stats)
        talk.answered(response.text)
        if response.interrupted:
            return 130
    return 0


def run_complete(args: argparse.Namespace) -> int:
    """Complete each input line; completions are streamed. Raises RemoteError."""
    remote = OpenAIServer.from_args(args)
    body = {"model": args.model_name or remote.first_model(), **_settings(args)}
    if _on_terminal(args):
        from quire.commands.chat.session import complete_on_terminal

        return complete_on_terminal(remote, body, args.stats, history_path(args, "complete"))
    for line in [args.quick] if args.quick else _input_lines():
        response = print_response(remote.stream("/completions", {**body, "prompt": line}), args.stats)
        if response.interrupted:
            return 130
    return 0


CHAT = Command("chat", "chat with a running server", _configure_chat, run_chat)
COMPLETE = Command("complete", "complete text with a running server", _configure_complete, run_complete)
