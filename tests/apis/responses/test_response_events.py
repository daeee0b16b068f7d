"""Streams of the Responses API: order and types of events, and that they say the same as the whole response."""

import json

import pytest
from api_rig import in_process
from response_events import Machine, checked, parsed, timeless

from quire.errors import EngineDied, Overloaded

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits files."}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [{**FUNCTION, "name": "read"}]}
TOOLS = [FUNCTION, CUSTOM, SPACE, {"type": "web_search"}, {"type": "local_shell"}]


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def asked(rig, reply, stream=True, **fields):
    rig.script.replies = [reply.encode()]
    async with in_process(rig.app) as client:
        body = {"model": "tiny", "input": "Why?", "stream": stream, **fields}
        answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer


PLAIN = "<think></think>"
KINDS = {
    "text": (f"{PLAIN}So.", {}, ["message"]),
    "nothing": (PLAIN, {}, ["message"]),
    "reasoning": ("<think>hm, é</think>So.", {}, ["reasoning", "message"]),
    "summary": ("<think>hm</think>So.", {"reasoning": {"summary": "auto"}}, ["reasoning", "message"]),
    "sealed": ("<think>hm</think>So.", {"include": ["reasoning.encrypted_content"]}, ["reasoning", "message"]),
    "cut reasoning": ("<think>hm hm hm", {"max_output_tokens": 10}, ["reasoning"]),
    "cut text": (f"{PLAIN}Because it is.", {"max_output_tokens": 20}, ["message"]),
    "logprobs": (f"{PLAIN}So.", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, ["message"]),
    "call": (f"{PLAIN}{call('f', a=1)}", {"tools": TOOLS}, ["function_call"]),
    "text and calls": (
        f"{PLAIN}I do.\n{call('f', a=1)}\n{call('mcp__files__read', path='x')}",
        {"tools": TOOLS},
        ["message", "function_call", "function_call"],
    ),
    "custom call": (PLAIN + call("patch", input='*** 1\n"ü" 😀'), {"tools": TOOLS}, ["custom_tool_call"]),
    "custom call with other arguments": (f"{PLAIN}{call('patch', text='x')}", {"tools": TOOLS}, ["custom_tool_call"]),
    "everything": (
        f"<think>hm</think>I do.{call('patch', input='x')}{call('f')}",
        {"tools": TOOLS},
        ["reasoning", "message", "custom_tool_call", "function_call"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_events_of_a_stream_say_what_the_whole_response_says(rig, kind):
    reply, fields, items = KINDS[kind]
    streamed = checked((await asked(rig, reply, **fields)).text)[-1]["response"]
    whole = (await asked(rig, reply, stream=False, **fields)).json()
    assert timeless(streamed) == timeless(whole)
    assert [item["type"] for item in whole["output"]] == items
    assert whole["status"] == ("incomplete" if "cut" in kind else "completed")
    assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if "cut" in kind else None)
    statuses = [item["status"] for item in whole["output"]]
    assert statuses[-1] == whole["status"]
    assert set(statuses[:-1]) <= {"completed"}
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_calls_come_back_as_the_tools_that_were_offered(rig):
    reply = PLAIN + call("patch", input='a\n"b"') + call("mcp__files__read", path="x")
    response = (await asked(rig, reply, stream=False, tools=TOOLS)).json()
    custom, function = response["output"]
    assert (custom["name"], custom["input"]) == ("patch", 'a\n"b"')
    assert (function["name"], function["namespace"]) == ("read", "mcp__files")
    assert json.loads(function["arguments"]) == {"path": "x"}
    assert response["tools"] == TOOLS
    assert "3 tools" in rig.script.prompt()  # those that only OpenAI runs are not offered


async def test_arguments_that_a_custom_tool_does_not_take_are_its_input(rig):
    reply = f"{PLAIN}{call('patch', text='x')}"
    response = (await asked(rig, reply, stream=False, tools=[CUSTOM])).json()
    assert json.loads(response["output"][0]["input"]) == {"text": "x"}


async def test_logprobs_are_those_of_the_text(rig):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = checked((await asked(rig, f"{PLAIN}So.", **fields)).text)
    part = events[-1]["response"]["output"][0]["content"][0]
    tokens = [entry["token"] for entry in part["logprobs"]]
    assert "".join(tokens).endswith("So.") or tokens[-4:-1] == ["S", "o", "."]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    bare = checked((await asked(rig, f"{PLAIN}So.")).text)
    assert bare[-1]["response"]["output"][0]["content"][0]["logprobs"] == []


async def test_a_summary_is_asked_for_and_reasoning_can_be_sealed(rig):
    reply = "<think>hm</think>So."
    plain = (await asked(rig, reply, stream=False)).json()["output"][0]
    assert (plain["content"], plain["summary"]) == ([{"type": "reasoning_text", "text": "hm"}], [])
    summary = (await asked(rig, reply, stream=False, reasoning={"summary": "auto"})).json()["output"][0]
    assert summary["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert "content" not in summary
    sealed = (await asked(rig, reply, stream=False, include=["reasoning.encrypted_content"])).json()["output"][0]
    rig.script.replies = [b"<think></think>So."]
    async with in_process(rig.app) as client:
        given = {"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]}
        count = [
            (await client.post("/v1/responses/input_tokens", json={"input": [given, {"role": "user", "content": "x"}]}))
            for given in (given, {**given, "encrypted_content": "of another service"})
        ]
    assert [one.status_code for one in count] == [200, 200]


async def test_an_error_before_the_first_event_has_its_status_and_one_after_it_fails_the_response(rig):
    rig.script.failure = (0, Overloaded("full"))
    rig.script.replies = [b"<think></think>So it is."]
    async with in_process(rig.app) as client:
        for stream in (True, False):
            early = await client.post("/v1/responses", json={"input": "Why?", "stream": stream})
            assert (early.status_code, early.json()["error"]["message"]) == (503, "full")
        rig.script.failure = (18, EngineDied("gone"))
        late = await client.post("/v1/responses", json={"input": "Why?", "stream": True})
        whole = await client.post("/v1/responses", json={"input": "Why?"})
        rig.script.failure = None
        response = checked(late.text)[-1]["response"]
        assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "gone"})
        assert response["output"][0]["status"] == "incomplete"
        assert (whole.status_code, whole.json()["error"]["message"]) == (503, "gone")
        assert (await client.get(f"/v1/responses/{response['id']}")).json() == response


def test_the_state_machine_refuses_what_is_out_of_order():
    text = 'event: response.output_text.delta\ndata: {"type": "response.output_text.delta"}\n\n'
    with pytest.raises(ValueError, match="sequence_number"):
        parsed(text)
    with pytest.raises(AssertionError):
        Machine().take({"type": "response.completed", "sequence_number": 0, "response": {"output": []}})
