"""`tool_choice` of some of the tools, and kinds of tools that are not supported."""

import openai
import pytest
from scripted_server import Scripted, talking
from tool_calls import ASK, BASE, PARSERS, written
from tool_texts import CALLS


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_only_the_allowed_tools_are_offered_or_demanded(tmp_path):
    pretend = Scripted(written("hermes", CALLS[1:]))
    async with talking(tmp_path, pretend, tool_parser=PARSERS["hermes"]) as client:
        for mode, demands in (("auto", False), ("required", True)):
            asked = {**BASE, "messages": [ASK], "tool_choice": allowed(mode, "look")}
            (choice,) = (await client.chat.completions.create(**asked)).choices
            assert [call.function.name for call in choice.message.tool_calls] == ["look"]
            assert "1 tools" in pretend.prompt()
            assert (pretend.requests[-1].params.structured is not None) == demands


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tool_choice": allowed("auto", "nothing")}, "tool_choice", "not among the tools"),
        ({"tool_choice": allowed("auto")}, "body.tool_choice", "allowed_tools"),
        ({"tool_choice": allowed("none", "look")}, "body.tool_choice", "allowed_tools"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "body.tool_choice", "allowed_tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "body.tools.0", "type custom are not supported"),
    ],
)
async def test_other_choices_and_tools_are_refused_with_what_would_do(tmp_path, fields, param, said):
    async with talking(tmp_path, Scripted("Yes."), tool_parser=PARSERS["hermes"]) as client:
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            await client.chat.completions.create(**{**BASE, "messages": [ASK], **fields})
    assert refused.value.param == param
