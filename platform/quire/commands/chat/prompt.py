"""Reads messages from the terminal: editing, several lines, history, completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

Choices = Callable[[str], Iterable[str] | None]
"""The completions of a command's argument, by the command; None: paths."""


def new_prompt(history: Path | None, completer: Completer | None = None, **streams: Any) -> PromptSession[str]:
    """A prompt for messages of one or more lines. history: file that keeps them; None: they are not kept.

    streams: `input` and `output` of prompt_toolkit, in place of the terminal.
    """
    return PromptSession(
        "> ",
        multiline=True,
        prompt_continuation="  ",
        history=_history(history),
        completer=completer,
        complete_while_typing=False,
        key_bindings=_keys(),
        **streams,
    )


def _history(path: Path | None) -> History:
    """The history in a file that only its owner can read, or in memory if there is no file or it cannot be written."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("a+b"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


def _keys() -> KeyBindings:
    """Enter sends the message; after a backslash it begins a new line, as Alt-Enter does.

    Ctrl-J stays Enter, since that is what Enter is while a response is printed and the terminal is in its usual mode.
    """
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # takes the completion, which is in the text already
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class MessageCompleter(Completer):
    """Completes commands, their arguments, and paths of pictures after @."""

    def __init__(self, commands: Iterable[str], choices: Choices) -> None:
        self._commands, self._choices = tuple(commands), choices
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions at the cursor."""
        text = document.text_before_cursor
        command, space, argument = text.partition(" ")
        if text.startswith("/") and "\n" not in text:
            if not space:
                yield from _starting_with(command, self._commands)
            elif (found := self._choices(command)) is None:
                yield from self._paths.get_completions(Document(argument.lstrip()), complete_event)
            else:
                yield from _starting_with(argument.lstrip(), found)
            return
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            yield from self._paths.get_completions(Document(word[1:].lstrip("\"'")), complete_event)


def _starting_with(text: str, names: Iterable[str]) -> Iterator[Completion]:
    yield from (Completion(name, -len(text)) for name in names if name.startswith(text))
