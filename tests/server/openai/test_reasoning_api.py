"""Reasoning over HTTP with the `openai` client: whole and streamed answers, usage, constraints, budgets."""

import json

import openai
import pytest
from scripted_server import REGISTRY, Scripted, streamed, talking

from quire.records import Registry
from quire_plugins.reasoning.formats import quire_reasoning_parsers
from quire_plugins.tools import quire_tool_parsers

PARSERS = {parser.name: parser for parser in quire_reasoning_parsers()}
HERMES = next(parser for parser in quire_tool_parsers() if parser.name == "hermes")
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.channels is None])
async def test_reasoning_is_a_field_of_its_own_whole_and_streamed(tmp_path, name) -> None:
    parser = PARSERS[name]
    text = f"{parser.start}\nhm, é\n{parser.end}\n\nSo."
    async with talking(tmp_path, Scripted(text), reasoning_parser=parser) as client:
        answer = await client.chat.completions.create(**ASK)
        content, reasoning, _, finish, usage = await streamed(client, **ASK)
        hidden = await client.chat.completions.create(**ASK, extra_body={"include_reasoning": False})
        assert (await streamed(client, **ASK, extra_body={"include_reasoning": False}))[:2] == ("So.", "")
    message = answer.choices[0].message
    assert (message.content, message.reasoning) == (content, reasoning) == ("So.", "hm, é")
    assert finish == answer.choices[0].finish_reason == "stop"
    assert usage == answer.usage
    inside = len(f"\nhm, é\n{parser.end}".encode()) - 1 + (name in ("qwen3", "deepseek_r1")) * len("<think>")
    assert usage.completion_tokens_details.reasoning_tokens == inside
    assert (hidden.choices[0].message.content, hidden.choices[0].message.reasoning) == ("So.", None)


async def test_without_a_parser_reasoning_stays_in_the_content(tmp_path) -> None:
    async with talking(tmp_path, Scripted("<think>hm</think>So.")) as client:
        answer = await client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == "<think>hm</think>So."
    assert not hasattr(answer.choices[0].message, "reasoning")
    assert answer.usage.completion_tokens_details is None


async def test_reasoning_then_a_call(tmp_path) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    pretend = Scripted(f"<think>{call}?</think>\n\n{call}", "<think></think>So.")
    async with talking(tmp_path, pretend, tool_parser=HERMES, reasoning_parser=PARSERS["qwen3"]) as client:
        first = (await client.chat.completions.create(**ASK, tools=TOOLS)).choices[0]
        assert (first.message.content, first.message.reasoning) == (None, f"{call}?")
        assert [made.function.arguments for made in first.message.tool_calls] == ['{"a": 1}']
        assert first.finish_reason == "tool_calls"
        back = [first.message.model_dump(), {"role": "tool", "tool_call_id": "x", "content": "1"}]
        template = "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}"
        await client.chat.completions.create(model="tiny", messages=[*ASK["messages"], *back], tools=TOOLS)
    pretend = Scripted("<think></think>So.")
    async with talking(tmp_path, pretend, template=template, reasoning_parser=PARSERS["qwen3"]) as client:
        await client.chat.completions.create(model="tiny", messages=[*ASK["messages"], *back])
    assert pretend.prompt() == f"|{call}?||"


@pytest.mark.parametrize(
    ("name", "opening", "after"),
    [
        ("qwen3", "", "</think>"),
        ("qwen3", "<think>\n", "</think>"),
        ("qwen3", "<think>\n\n</think>\n\n", None),
        ("glm45", "<think>", "</think>"),
        ("glm45", "", None),
    ],
)
async def test_constraints_begin_after_the_reasoning(tmp_path, name, opening, after) -> None:
    form = {"type": "json_object"}
    kwargs = {"extra_body": {"chat_template_kwargs": {"opening": opening}}}
    pretend = Scripted("{}")
    async with talking(tmp_path, pretend, tool_parser=HERMES, reasoning_parser=PARSERS[name]) as client:
        await client.chat.completions.create(**ASK, response_format=form, **kwargs)
        await client.chat.completions.create(**ASK, tools=TOOLS, tool_choice="required", **kwargs)
        await client.chat.completions.create(**ASK, tools=TOOLS, response_format=form, **kwargs)
    structured = [request.params.structured for request in pretend.requests]
    assert [(one.kind, one.after) for one in structured] == [("json_object", after), ("calls", after), ("calls", after)]
    lead = json.loads(structured[1].source).get("lead")
    assert lead == ({"begin": "<think>", "end": "</think>"} if (name, opening) == ("glm45", "") else None)


async def test_a_budget_reaches_the_engine_with_what_it_must_know(tmp_path) -> None:
    pretend = Scripted("So.")
    async with talking(tmp_path, pretend, reasoning_parser=PARSERS["qwen3"]) as client:
        await client.chat.completions.create(**ASK, extra_body={"thinking_token_budget": 7})
        closed = {"thinking_token_budget": 7, "chat_template_kwargs": {"opening": "</think>"}}
        await client.chat.completions.create(**ASK, extra_body=closed)
    limit = {"tokens": 7, "start": list(b"<think>"), "end": list(b"</think>"), "inside": True}
    assert [request.params.extra for request in pretend.requests] == [{"reasoning_limit": limit}, {}]


@pytest.mark.parametrize(("registry", "parser"), [(REGISTRY, None), (Registry(), PARSERS["qwen3"])])
async def test_a_reasoning_budget_that_cannot_be_kept_is_refused(tmp_path, registry, parser) -> None:
    async with talking(tmp_path, Scripted("So."), registry=registry, reasoning_parser=parser) as client:
        with pytest.raises(openai.BadRequestError, match="--reasoning-parser"):
            await client.chat.completions.create(**ASK, extra_body={"thinking_token_budget": 7})


@pytest.mark.parametrize("effort", ["none", "low"])
async def test_the_effort_reaches_the_template(tmp_path, effort) -> None:
    pretend = Scripted("So.")
    template = "{{ reasoning_effort }} {{ enable_thinking | default(true) }} {{ thinking | default(true) }}"
    async with talking(tmp_path, pretend, template=template) as client:
        await client.chat.completions.create(**ASK, reasoning_effort=effort)
    assert pretend.prompt() == {"none": "none False False", "low": "low True True"}[effort]


async def test_a_message_that_is_continued_has_its_reasoning_behind_it(tmp_path) -> None:
    for said, expected in (("<think>a", ("b", "hm")), ("<think>a</think>S", ("hm</think>b", None))):
        async with talking(tmp_path, Scripted("hm</think>b"), reasoning_parser=PARSERS["qwen3"]) as client:
            messages = [*ASK["messages"], {"role": "assistant", "content": said}]
            more = {"add_generation_prompt": False, "continue_final_message": True}
            answer = await client.chat.completions.create(model="tiny", messages=messages, extra_body=more)
        message = answer.choices[0].message
        assert (message.content, message.reasoning) == expected


async def test_usage_that_comes_with_every_chunk_counts_reasoning_as_it_grows(tmp_path) -> None:
    async with talking(tmp_path, Scripted("hm</think>So."), reasoning_parser=PARSERS["qwen3"]) as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = await client.chat.completions.create(**ASK, stream=True, stream_options=options)
        counts = [chunk.usage.completion_tokens_details.reasoning_tokens async for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == len("hm</think")
