"""`platform chat` and `platform complete` on a terminal and in a pipe."""

import base64
import io
import os
import pty
import select
import stat
import subprocess
import sys
from argparse import Namespace
from contextlib import contextmanager

import pytest
from greeting_server import greeting_server
from PIL import Image
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from quire.commands.chat.command import run_chat
from quire.commands.chat.conversation import TerminalConversation
from quire.commands.chat.printing import print_response
from quire.commands.chat.prompt import MessageCompleter, new_prompt
from quire.commands.chat.session import ChatSession, read_and_answer
from quire.commands.chat.slash import COMMANDS, ChatEnded
from quire.commands.remote import OpenAIServer, RemoteError
from quire.errors import ConfigError

READY = b"\x1b[?2004h"
"""Sent by a prompt when it begins to read: text may be pasted."""


def chunk(**delta):
    return {"choices": [{"delta": delta}]}


class Remote:
    """A server that keeps the requests and answers each with its number."""

    url = "http://h/v1"

    def __init__(self):
        self.bodies = []

    def models(self):
        return {"big": None, "big-pirate": "big"}

    def stream(self, path, body):
        self.bodies.append(body)
        if body["messages"][-1]["content"] == "fail":
            raise RemoteError("503: too busy")
        yield chunk(content=f"answer {len(self.bodies)}")


def contents(body):
    return [message["content"] for message in body["messages"]]


@pytest.fixture
def chat():
    remote = Remote()
    session = ChatSession(remote, TerminalConversation("big", {"temperature": 0}), stats=False)
    session.remote = remote
    return session


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (2, 2), "red").save(tmp_path / "my picture.png")
    return tmp_path / "my picture.png"


def test_reasoning_is_shown_before_the_answer_and_is_no_part_of_it(capsys):
    answer = print_response(
        iter([chunk(reasoning="Let me "), chunk(reasoning_content="see."), chunk(content="4")]), False
    )
    assert answer.text == "4"
    assert capsys.readouterr().out == "Let me see.\n\n4\n"


def test_a_terminal_shows_reasoning_dimmed_and_no_control_characters_of_the_answer(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    answer = print_response(iter([chunk(reasoning="hm"), chunk(content="a\x1b]0;title\x07\tb\ud800")]), False)
    assert capsys.readouterr().out == "\x1b[2mhm\x1b[0m\n\na\\x1b]0;title\\x07\tb\\ud800\n"
    assert answer.text == "a\x1b]0;title\x07\tb\ud800"


def test_an_interrupt_ends_the_answer_with_its_line_keeps_what_came_and_closes_the_connection(capsys):
    closed = []

    def chunks():
        try:
            yield chunk(content="On")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    answer = print_response(chunks(), False)
    assert (answer.text, answer.interrupted, closed) == ("On", True, [True])
    assert capsys.readouterr().out == "On\n"


@pytest.mark.parametrize("url", ["http://host:8000", "http://host:8000/", "http://host:8000/v1"])
def test_a_url_without_a_path_gets_the_usual_one(url):
    assert OpenAIServer.from_args(Namespace(url=url, api_key=None)).url == "http://host:8000/v1"
    assert OpenAIServer.from_args(Namespace(url="http://host/api/v1/", api_key=None)).url == "http://host/api/v1"


def test_a_conversation_carries_what_was_said_until_it_is_reset(chat, capsys):
    for text in ("one", "/system be brief", "two", "/reset", "three"):
        chat.take(text)
    assert [contents(body) for body in chat.remote.bodies] == [
        ["one"],
        ["be brief", "one", "answer 1", "two"],
        ["be brief", "three"],
    ]
    assert chat.remote.bodies[0]["temperature"] == 0


def test_another_model_continues_the_conversation(chat, capsys):
    chat.take("/model")
    assert "* big" in capsys.readouterr().out
    chat.take("/model big-pirate")
    chat.take("one")
    assert chat.remote.bodies[-1]["model"] == "big-pirate"
    with pytest.raises(ConfigError, match="did you mean 'big-pirate'"):
        chat.take("/model big-pirat")


def test_an_unknown_command_suggests_a_similar_one_and_two_slashes_are_a_message(chat, capsys):
    with pytest.raises(ConfigError, match="did you mean /reset"):
        chat.take("/rest")
    chat.take("//etc is a folder")
    assert contents(chat.remote.bodies[-1]) == ["/etc is a folder"]
    chat.take("/help")
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_pictures_are_sent_with_the_next_message(chat, picture, monkeypatch, capsys):
    monkeypatch.chdir(picture.parent)
    chat.take(f"/image {picture}")
    chat.take("/image https://example.org/x.png")
    chat.take('What is left of @"my picture.png" and who is @bob?')
    first, url, mention, text = contents(chat.remote.bodies[-1])[0]
    encoded = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
    assert first == mention == {"type": "image_url", "image_url": {"url": encoded}}
    assert url["image_url"]["url"] == "https://example.org/x.png"
    assert text["text"] == "What is left of and who is @bob?"
    chat.take("next")
    assert contents(chat.remote.bodies[-1])[-1] == "next"


def test_a_file_that_is_no_picture_is_refused_and_nothing_is_sent(chat, tmp_path):
    (tmp_path / "notes.txt").write_text("secret")
    with pytest.raises(ConfigError, match="is not a picture"):
        chat.take(f"Read @{tmp_path / 'notes.txt'}")
    with pytest.raises(ConfigError, match="not a regular file"):
        chat.take("/image /dev/zero")
    assert not chat.remote.bodies


def test_an_error_is_shown_and_the_message_is_taken_back(chat, capsys):
    texts = iter(["fail", "fine", "/exit", "never read"])
    assert read_and_answer(lambda: next(texts), chat.take, chat.say) == 0
    assert "error: 503: too busy" in capsys.readouterr().out
    assert contents(chat.remote.bodies[-1]) == ["fine"]
    assert next(texts) == "never read"


def test_an_interrupt_at_the_prompt_drops_the_text_and_the_end_of_the_input_ends_the_chat(chat):
    typed = iter([KeyboardInterrupt, "", EOFError])

    def read():
        found = next(typed)
        if isinstance(found, str):
            return found
        raise found

    assert read_and_answer(read, chat.take, chat.say) == 0
    assert not chat.remote.bodies


@contextmanager
def prompt(history=None):
    with create_pipe_input() as keys:
        yield keys, new_prompt(history, input=keys, output=DummyOutput())


def test_enter_sends_and_a_new_line_begins_after_a_backslash_or_with_alt():
    with prompt() as (keys, session):
        keys.send_text("one\\\rtwo\x1b\rthree\r")
        assert session.prompt() == "one\ntwo\nthree"


def test_what_was_typed_comes_back_in_the_next_chat_from_a_private_file(tmp_path):
    file = tmp_path / "state" / "history"
    with prompt(file) as (keys, session):
        keys.send_text("one\r")
        session.prompt()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with prompt(file) as (keys, session):
        keys.send_text("\x1b[A!\r")
        assert session.prompt() == "one!"


def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    with prompt(tmp_path / "file" / "history") as (keys, session):
        keys.send_text("one\r")
        assert session.prompt() == "one"


def test_commands_models_and_paths_of_pictures_are_completed(chat, picture, monkeypatch):
    monkeypatch.chdir(picture.parent)
    completer = MessageCompleter(COMMANDS, chat._choices)

    def completions(text):
        return [found.text for found in completer.get_completions(Document(text), CompleteEvent())]

    assert completions("/re") == ["/reset"]
    assert completions("/model big") == ["big", "big-pirate"]
    assert completions("/image my") == completions("see @my") == [" picture.png"]
    assert completions("my") == completions("/reset x") == []


@pytest.mark.process
def test_a_terminal_is_greeted_and_lines_can_be_called_back(tmp_path):
    terminal, theirs = pty.openpty()
    said = b""

    def read_until(text: bytes) -> None:
        nonlocal said
        while text not in said:
            assert select.select([terminal], [], [], 60)[0], said
            said += os.read(terminal, 1024)
        said = said.partition(text)[2]

    with greeting_server() as (server, url):
        command = [sys.executable, "-m", "quire.cli", "chat", "--url", url, "--history-file", str(tmp_path / "history")]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        env = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        with subprocess.Popen(command, **streams, env=env) as process:
            os.close(theirs)
            read_until(b"Ctrl-D exits, Ctrl-C stops a response)")
            for keys in (b"one\r", b"\x1b[A\r"):  # the arrow upwards brings the line before
                read_until(READY)
                os.write(terminal, keys)
                read_until(b"hello world")
            read_until(READY)
            os.write(terminal, b"\x04")
            while select.select([terminal], [], [], 60)[0]:  # what is left, until the terminal is closed
                try:
                    os.read(terminal, 1024)
                except OSError:
                    break
    os.close(terminal)
    assert process.returncode == 0
    assert [message["content"] for message in server.bodies[-1][1]["messages"]] == ["one", "hello world", "one"]


def test_piped_lines_are_answered_as_they_are_without_prompts(capsys, monkeypatch, picture):
    lines = ["one", "", "/reset", f"@{picture}"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    remote = Remote()
    monkeypatch.setattr(OpenAIServer, "stream", remote.stream.__func__)
    monkeypatch.setattr(OpenAIServer, "bodies", remote.bodies, raising=False)
    settings = {"system_prompt": None, "quick": None, "max_tokens": None, "temperature": None, "stats": False}
    assert run_chat(Namespace(url="http://h", api_key=None, model_name="m", image=[], **settings)) == 0
    assert capsys.readouterr().out == "answer 1\nanswer 2\nanswer 3\n"
    assert contents(remote.bodies[-1]) == ["one", "answer 1", "/reset", "answer 2", f"@{picture}"]


def test_a_quick_message_is_sent_with_its_picture(picture, capsys):
    with greeting_server() as (server, url):
        settings = {"system_prompt": None, "max_tokens": None, "temperature": None, "stats": False, "api_key": None}
        assert run_chat(Namespace(url=url, model_name=None, quick="see", image=[str(picture)], **settings)) == 0
    part, text = server.bodies[0][1]["messages"][0]["content"]
    assert (part["type"], text["text"]) == ("image_url", "see")


def test_the_chat_ends_by_a_command(chat):
    with pytest.raises(ChatEnded):
        chat.take("/quit")
