"""The chat templates for tools among the examples: what they show of tools, calls and results."""

import json
from pathlib import Path

import pytest
from scripted_server import Scripted, talking
from tool_texts import ADD, LOOK, TOOLS

from quire.records import Registry
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.tool_calls import ToolCallExtractor, choose_parser
from quire_plugins.tools import quire_tool_parsers

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[3] / "examples" / "chat_templates"
NAMES = sorted(path.stem.removeprefix("tool_") for path in FOLDER.glob("tool_*.jinja"))
REGISTRY = Registry(records={"quire_tool_parsers": {parser.name: parser for parser in quire_tool_parsers()}})
ENDS = ("<|im_end|>", "<|eot_id|>", "</s>")

SHOWN = {"openai": ("// Adds.\ntype add = (_: {\na: number,\nnote?: string,\n}) => any;", "n?: number | null,")}
"""How tools look that are not written as JSON."""

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Add, then look."}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "chatcmpl-tool-123456789", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for n, a in (("add", ADD), ("look", LOOK))
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": "chatcmpl-tool-123456789", "content": text} for text in ("3", "seen")]


@pytest.fixture(scope="module")
def renderer():
    renderer = TemplatePool(timeout_s=60)
    yield renderer
    renderer.close()


def source(name):
    return (FOLDER / f"tool_{name}.jinja").read_text()


def chat(renderer, name):
    return ChatTemplate({"default": source(name)}, {"bos_token": "<s>", "eos_token": "</s>"}, renderer)


def test_there_is_one_for_each_family_that_needs_it() -> None:
    assert NAMES == ["hermes", "llama3_json", "mistral", "openai", "pythonic"]


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_recognised_as_its_parsers(name) -> None:
    parser = choose_parser(REGISTRY, None, source(name))
    assert parser is not None
    assert parser.name == name


@pytest.mark.parametrize("name", NAMES)
def test_tools_calls_and_results_are_shown(renderer, name) -> None:
    template = chat(renderer, name)
    asked = template.render([SYSTEM, USER], tools=TOOLS)
    for part in ("Be brief.", "Add, then look.", *SHOWN.get(name, ('"look"', '"$defs"'))):
        assert asked.count(part) == 1
    later = template.render([SYSTEM, USER, CALLED, *RESULTS, {"role": "assistant", "content": "Done."}, USER])
    for part in ("Be brief.", "seen", "Done."):
        assert later.count(part) == 1
    assert "tools" not in later.lower()


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_shown_as_the_parser_reads_them(renderer, name) -> None:
    template = chat(renderer, name)
    before = template.render([USER], tools=TOOLS)
    whole = template.render([USER, CALLED], tools=TOOLS, add_generation_prompt=False)
    assert whole.startswith(before)
    text = whole[len(before) :].strip()
    for end in ENDS:
        text = text.removesuffix(end)
    reader = ToolCallExtractor(REGISTRY.by_hook("quire_tool_parsers")[name], TOOLS, REGISTRY)
    answer = OutputParser(tools=reader, prompt=before).read(text)
    assert answer.content is None
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("add", ADD), ("look", LOOK)]


async def test_a_round_trip_with_mistrals_ids_and_template(tmp_path) -> None:
    parser = REGISTRY.by_hook("quire_tool_parsers")["mistral"]
    pretend = Scripted('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', "Done.")
    ask = {"model": "tiny", "tools": TOOLS}
    async with talking(
        tmp_path, pretend, template="{% set bos_token, eos_token = '', '' %}" + source("mistral"), tool_parser=parser
    ) as client:
        (first,) = (await client.chat.completions.create(**ask, messages=[USER])).choices
        (call,) = first.message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        await client.chat.completions.create(**ask, messages=[USER, first.message.model_dump(), result])
    assert f'"arguments": {{"a": 1}}, "id": "{call.id}"}}]' in pretend.prompt()
    assert pretend.prompt().endswith(f'[TOOL_RESULTS]{{"content": "3", "call_id": "{call.id}"}}[/TOOL_RESULTS]')
