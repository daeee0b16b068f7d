"""`platform chat` and `platform complete` on a terminal and in a pipe."""

import io
import os
import pty
import select
import subprocess
import sys
from argparse import Namespace

import pytest
from greeting_server import greeting_server

from quire.commands.chat import _print_response, run_chat
from quire.commands.remote import OpenAIServer


def chunk(**delta):
    return {"choices": [{"delta": delta}]}


def test_reasoning_is_shown_before_the_answer_and_is_no_part_of_it(capsys):
    answer = _print_response(
        iter([chunk(reasoning="Let me "), chunk(reasoning_content="see."), chunk(content="4")]), False
    )
    assert answer.text == "4"
    assert capsys.readouterr().out == "Let me see.\n\n4\n"


def test_an_interrupt_ends_the_answer_with_its_line_and_keeps_what_came(capsys):
    def chunks():
        yield chunk(content="On")
        raise KeyboardInterrupt

    answer = _print_response(chunks(), False)
    assert (answer.text, answer.interrupted) == ("On", True)
    assert capsys.readouterr().out == "On\n"


@pytest.mark.parametrize("url", ["http://host:8000", "http://host:8000/", "http://host:8000/v1"])
def test_a_url_without_a_path_gets_the_usual_one(url):
    assert OpenAIServer.from_args(Namespace(url=url, api_key=None)).url == "http://host:8000/v1"
    assert OpenAIServer.from_args(Namespace(url="http://host/api/v1/", api_key=None)).url == "http://host/api/v1"


def test_a_terminal_is_greeted_and_lines_can_be_called_back():
    terminal, theirs = pty.openpty()
    said = b""

    def read_until(text: bytes) -> None:
        nonlocal said
        while text not in said:
            assert select.select([terminal], [], [], 60)[0], said
            said += os.read(terminal, 1024)
        said = said.partition(text)[2]

    with greeting_server() as (server, url):
        command = [sys.executable, "-m", "quire.cli", "chat", "--url", url]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with subprocess.Popen(command, **streams, env={**os.environ, "TERM": "xterm"}) as process:
            os.close(theirs)
            read_until(b"Ctrl-D exits, Ctrl-C stops a response)")
            for keys in (b"one\r", b"\x1b[A\r"):  # the arrow upwards brings the line before
                read_until(b"> ")
                os.write(terminal, keys)
                read_until(b"hello world")
            read_until(b"> ")
            os.write(terminal, b"\x04")
    os.close(terminal)
    assert process.returncode == 0
    assert [message["content"] for message in server.bodies[-1][1]["messages"]] == ["one", "hello world", "one"]


def test_piped_lines_are_answered_without_prompts(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    asked = []

    def stream(self, path, body):
        asked.append([message["content"] for message in body["messages"]])
        yield chunk(content=f"answer {len(asked)}")

    monkeypatch.setattr(OpenAIServer, "stream", stream)
    settings = {"system_prompt": None, "quick": None, "max_tokens": None, "temperature": None, "stats": False}
    assert run_chat(Namespace(url="http://h", api_key=None, model_name="m", **settings)) == 0
    assert capsys.readouterr().out == "answer 1\nanswer 2\n"
    assert asked == [["one"], ["one", "answer 1", "two"]]
