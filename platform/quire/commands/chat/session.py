"""A chat on a terminal: messages and commands are read, responses are streamed, errors do not end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from quire.commands.chat.conversation import TerminalConversation
from quire.commands.chat.pictures import mentioned
from quire.commands.chat.printing import print_response
from quire.commands.chat.prompt import MessageCompleter, new_prompt
from quire.commands.chat.slash import COMMANDS, ChatEnded, run_command
from quire.commands.remote import OpenAIServer, RemoteError
from quire.commands.terminal_text import visible
from quire.errors import QuireError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class ChatSession:
    """One chat; `quire.commands.chat.slash.ChatControls` for the commands."""

    def __init__(self, remote: OpenAIServer, conversation: TerminalConversation, stats: bool) -> None:
        self.conversation = conversation
        self._remote, self._stats = remote, stats

    def run(self, history: Path | None) -> int:
        """Greet, then answer messages until the user ends the chat."""
        self.say(f"Chat with {self.conversation.model} at {self._remote.url} (Ctrl-D exits, Ctrl-C stops a response)")
        self.say("/help lists the commands; /model lists the models.")
        prompt = new_prompt(history, MessageCompleter(COMMANDS, self._choices))
        return read_and_answer(prompt.prompt, self.take, self.say)

    def take(self, text: str) -> None:
        """Run a command, or send a message and print the response. Raises QuireError and ChatEnded."""
        if text.startswith("/") and not text.startswith("//"):
            run_command(self, text)
            return
        message, pictures = mentioned(text.removeprefix("/") if text.startswith("//") else text)
        for path in pictures:
            self.conversation.attach(path)
        body = self.conversation.ask(message)
        try:
            response = print_response(self._remote.stream("/chat/completions", body), self._stats)
        except BaseException:
            self.conversation.take_back()
            raise
        self.conversation.answered(response.text)

    def say(self, text: str) -> None:
        """Show a line that is not part of the conversation."""
        print(f"{DIM}{visible(text)}{PLAIN}")

    def models(self) -> Mapping[str, str | None]:
        """The models and adapters of the server, each with its base model; None for a model. Raises RemoteError."""
        return self._remote.models()

    def _choices(self, command: str) -> Iterable[str] | None:
        if command == "/model":
            try:
                return self.models()
            except RemoteError:
                return ()
        return None if command == "/image" else ()


def read_and_answer(read: Callable[[], str], take: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Call `take` with each text that is read, until the input or the chat ends. Errors are shown."""
    while True:
        try:
            text = read()
        except EOFError:
            return 0
        except KeyboardInterrupt:  # drops what was typed
            continue
        if not text.strip():
            continue
        try:
            take(text.strip())
        except ChatEnded:
            return 0
        except KeyboardInterrupt:  # before the response began
            continue
        except QuireError as error:
            say(f"error: {error.message}")


def complete_on_terminal(remote: OpenAIServer, body: Mapping[str, Any], stats: bool, history: Path | None) -> int:
    """Complete each text that is typed."""

    def say(text: str) -> None:
        print(f"{DIM}{visible(text)}{PLAIN}")

    def take(text: str) -> None:
        print_response(remote.stream("/completions", {**body, "prompt": text}), stats)

    say(f"Completions by {body['model']} at {remote.url} (Ctrl-D exits, Ctrl-C stops a response)")
    return read_and_answer(new_prompt(history).prompt, take, say)
