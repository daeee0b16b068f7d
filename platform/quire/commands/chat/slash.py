"""The commands inside a chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from quire.commands.chat.conversation import TerminalConversation
from quire.errors import ConfigError
from quire.settings.near_names import near_name


class ChatControls(Protocol):
    """What the commands act on."""

    conversation: TerminalConversation

    def say(self, text: str) -> None:
        """Show a line that is not part of the conversation."""
        ...

    def models(self) -> Mapping[str, str | None]:
        """The models and adapters of the server, each with its base model; None for a model. Raises RemoteError."""
        ...


@dataclass(frozen=True)
class SlashCommand:
    """A command. argument: its argument's name in the help, "" if it has none. run: called with the argument."""

    name: str
    argument: str
    help: str
    run: Callable[[ChatControls, str], None]


class ChatEnded(Exception):
    """The user ended the chat by a command."""


def run_command(chat: ChatControls, text: str) -> None:
    """Run a command: its name, and the rest of the text as its argument. Raises QuireError and ChatEnded."""
    name, _, argument = text.partition(" ")
    command = COMMANDS.get(name) or COMMANDS.get(ALIASES.get(name, ""))
    if command is None:
        near = near_name(name, [*COMMANDS, *ALIASES])
        hint = f"did you mean {near}?" if near else "/help lists the commands."
        raise ConfigError(f"There is no command {name}; {hint} A message that begins with a slash begins with two.")
    if argument.strip() and not command.argument:
        raise ConfigError(f"{command.name} takes no argument.")
    command.run(chat, argument.strip())


def _help(chat: ChatControls, _: str) -> None:
    width = max(len(f"{command.name} {command.argument}") for command in COMMANDS.values())
    for command in COMMANDS.values():
        chat.say(f"{f'{command.name} {command.argument}':{width}}  {command.help}")
    chat.say("Enter sends; Alt-Enter or a backslash before Enter begins a new line; Tab completes.")
    chat.say("@PATH in a message attaches a picture. Ctrl-C stops a response, Ctrl-D ends.")


def _model(chat: ChatControls, name: str) -> None:
    models = chat.models()
    if not name:
        for each, base in models.items():
            chat.say(f"{'*' if each == chat.conversation.model else ' '} {each}{f'  (adapter of {base})' * bool(base)}")
        return
    if name not in models:
        near = near_name(name, models)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(models)}."
        raise ConfigError(f"The server has no model {name!r}; {hint}")
    chat.conversation.model = name
    chat.say(f"The next answers are from {name}.")


def _system(chat: ChatControls, text: str) -> None:
    if not text:
        chat.say(chat.conversation.system or "There is no system message; /system TEXT sets one.")
        return
    chat.conversation.system = None if text == "-" else text
    chat.say("The system message is removed." if text == "-" else "The system message is set.")


def _image(chat: ChatControls, path: str) -> None:
    if not path:
        raise ConfigError("/image needs the path of a picture, or a URL that the server may fetch.")
    chat.conversation.attach(path.strip("\"'"))
    count = len(chat.conversation.pictures)
    chat.say(f"{count} picture{'s' * (count > 1)} will be sent with the next message.")


def _reset(chat: ChatControls, _: str) -> None:
    chat.conversation.reset()
    chat.say("A new conversation begins.")


def _exit(chat: ChatControls, _: str) -> None:
    raise ChatEnded


COMMANDS: Mapping[str, SlashCommand] = {
    command.name: command
    for command in (
        SlashCommand("/help", "", "this list", _help),
        SlashCommand("/model", "[NAME]", "list the models and adapters of the server, or use another one", _model),
        SlashCommand("/system", "[TEXT]", "show or set the system message; - removes it", _system),
        SlashCommand("/image", "PATH", "send a picture (a file or a URL) with the next message", _image),
        SlashCommand("/reset", "", "begin a new conversation", _reset),
        SlashCommand("/exit", "", "end (also Ctrl-D)", _exit),
    )
}
ALIASES: Mapping[str, str] = {"/?": "/help", "/clear": "/reset", "/quit": "/exit", "/bye": "/exit"}
