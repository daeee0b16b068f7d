"""One application with the Responses API for all tests of a process: to make one takes long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from api_rig import REASONING_PARSERS, TOOL_PARSERS, URL, api_app, in_process
from scripted_server import Scripted

PARSERS = {"tool_parser": TOOL_PARSERS["hermes"], "reasoning_parser": REASONING_PARSERS["qwen3"]}


class Rig:
    """The application and the script of its model, which answers with `replies`, the last one for ever."""

    def __init__(self, folder: Any, options: Any = None, **more: Any) -> None:
        self.script = Scripted("")
        self.app = api_app(folder, self.script, ["responses"], {"responses": options or {}}, **PARSERS, **more)

    def says(self, *replies: str) -> None:
        """Answer the next requests with these texts, without reasoning unless they have some."""
        texts = [text if text.startswith("<think>") else f"<think></think>{text}" for text in replies]
        self.script.replies = [text.encode() for text in texts]
        self.script.requests.clear()

    def openai(self, api_key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{URL}/v1", api_key=api_key, max_retries=0, http_client=in_process(self.app)
        )

    def http(self) -> Any:
        return in_process(self.app)

    def set_context(self, length: int) -> None:
        """Change the length of the model's context."""
        (served,) = self.app.state.service.models.all
        object.__setattr__(served, "info", replace(served.info, max_model_len=length))


@pytest.fixture(scope="session")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("responses"))


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    """The shared application, with a script that says nothing yet."""
    shared_rig.says("")
    yield shared_rig
    shared_rig.script.hold = shared_rig.script.failure = None
    shared_rig.script.aborted.clear()


@pytest.fixture
def new_rig(tmp_path: Any) -> Any:
    """Makes an application of its own, with options of the plugin."""
    return lambda options=None, **more: Rig(tmp_path, options, **more)


def call(name: str, **arguments: Any) -> str:
    """A call of a tool as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def tool_call() -> Any:
    return call
