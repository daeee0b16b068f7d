"""Calls that a request demands, of a model with random weights: what it writes is always calls that fit the tools."""

import json
from dataclasses import replace

import jsonschema
import openai
import pytest
from grammar_texts import compiled, keeps_to
from serving import serving

from quire import LLM, SamplingParams
from quire.records import Registry
from quire.server.chat_tools import ToolUse
from quire.server.schema_requests import Tool
from quire.testing import byte_tokenizer, tiny_llama
from quire.text.answers import AnswerReader
from quire.text.json_calls import JSON_CALLS
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolReader
from quire_plugins.tools import quire_tool_parsers

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": -9, "maximum": 9}, "b": {"enum": ["x", 'é"}']}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in TOOLS}
FRAMED = {parser.name: parser for parser in (*quire_tool_parsers(), JSON_CALLS) if parser.frame}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), device="cpu", num_pages=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def use_of(parser, at_most):
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    reader = ToolReader(parser, TOOLS, Registry(), early=True)
    kinds = frozenset({"calls"})
    return ToolUse(reader=reader, parser=parser, offered=tools, kinds=kinds, demanded=tools, at_most=at_most)


@pytest.mark.parametrize("at_most", [1, 3])
@pytest.mark.parametrize("name", FRAMED)
def test_demanded_calls_fit_their_schemas(llm, name, at_most) -> None:
    use = use_of(FRAMED[name], at_most)
    for template in ("", "[ARGS]") if name == "mistral" else ("",):
        structured = use.demand(template)
        params = SamplingParams(structured=structured, temperature=1, max_tokens=900, seed=1, n=2)
        for answer in llm.generate("hi", params, use_tqdm=False)[0].outputs:
            assert answer.finish_reason == "stop"
            said = AnswerReader(tools=use.reader).read(answer.text)
            assert said.content is None
            assert 1 <= len(said.calls) <= at_most
            for call in said.calls:
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("name", [name for name, parser in FRAMED.items() if parser.start])
def test_strict_tools_leave_an_answer_without_calls_free(llm, name) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    offered = [Tool.model_validate(tool) for tool in strict]
    use = replace(use_of(FRAMED[name], None), demanded=(), offered=offered, kinds=frozenset({"structural_tag"}))
    structured = use.strict("")
    assert (structured is None) == name.startswith("llama")
    letters = dict.fromkeys(b"abc {<[\n", 50.0)  # a model with random weights writes no text by itself
    texts = [
        llm.generate("hi", SamplingParams(structured=held, max_tokens=12, seed=1, logit_bias=letters), use_tqdm=False)
        for held in (None, structured)
    ]
    assert texts[0][0].outputs[0].text == texts[1][0].outputs[0].text


GOOD, BAD = '{"a": 7, "b": "x"}', '{"a": 70, "b": "x"}'


@pytest.mark.parametrize("name", [name for name, parser in FRAMED.items() if parser.start and "llama" not in name])
def test_a_call_of_a_strict_tool_must_fit_wherever_it_stands(name, tokenizer) -> None:
    parser = FRAMED[name]
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    tools[0].function.strict = True
    use = replace(use_of(parser, None), demanded=(), offered=tools, kinds=frozenset({"structural_tag"}))
    grammar = compiled(use.strict(""), tokenizer)
    for arguments, fits in ((GOOD, True), (BAD, False)):
        frame = parser.frame("add", "")
        text = f"See: {frame.first}{frame.before}{arguments}{frame.after}{frame.last}"
        assert keeps_to(grammar, tokenizer, text) == fits


ODD = ["a-b", "-", "9", "class", "x" * 64]


@pytest.mark.parametrize("name", FRAMED)
def test_tools_with_odd_names_and_twins_can_be_demanded(name, tokenizer) -> None:
    parser, schemas = FRAMED[name], [TOOLS[0]["function"]["parameters"], {"type": "object", "properties": {}}]
    asked = [
        {"type": "function", "function": {"name": odd, "parameters": schema}}
        for odd, schema in [*((odd, schemas[0]) for odd in ODD), (ODD[0], schemas[1])]
    ]
    tools = [Tool.model_validate(tool) for tool in asked]
    use = replace(use_of(parser, None), demanded=tools, offered=tools)
    grammar = compiled(use.demand(""), tokenizer)
    for odd, arguments, fits in (*((odd, GOOD, True) for odd in ODD), (ODD[0], "{}", True), (ODD[1], "{}", False)):
        frames = [parser.frame(each, "") for each in (odd, ODD[2])]
        said = [frame.before + each + frame.after for frame, each in zip(frames, (arguments, GOOD), strict=True)]
        text = frames[0].first + frames[0].between.join(said) + frames[0].last
        assert keeps_to(grammar, tokenizer, text) == fits
        made = AnswerReader(tools=use.reader).read(text).calls
        assert [(call.name, call.arguments) for call in made] == [(odd, arguments), (ODD[2], GOOD)]


def test_demanded_calls_come_after_the_reasoning_which_ends_where_its_budget_does(folder) -> None:
    flags = ("--served-model-name", "tiny", "--device", "cpu", "--num-pages", "256")
    with (
        serving(folder, *flags, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 1, "seed": 2}
        asked = {**ask, "max_tokens": 600, "tools": TOOLS, "extra_body": {"thinking_token_budget": 5}}
        one = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
        (choice,) = one.choices
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.reasoning
        assert one.usage.completion_tokens_details.reasoning_tokens == 5 + len("</think")
        named = {"type": "function", "function": {"name": "now"}}
        with client.chat.completions.stream(**asked, tool_choice=named) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "stop"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert [made.function.name for made in final.message.tool_calls] == ["now"]
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMAS["add"]}}
        answer = client.chat.completions.create(
            **ask, max_tokens=99, response_format=form, extra_body=asked["extra_body"]
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMAS["add"])
        assert answer.choices[0].message.reasoning
        with pytest.raises(openai.BadRequestError, match="is for chat"):
            client.completions.create(model="tiny", prompt="x", extra_body={"thinking_token_budget": 1})
