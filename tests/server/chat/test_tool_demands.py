"""Calls that a request demands, of a model with random weights: what it writes is always calls that fit the tools."""

import json
from dataclasses import replace

import jsonschema
import openai
import pytest
from grammar_texts import compiled, keeps_to
from serving import serving

from quire import LLM, SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Registry
from quire.server.openai.chat_tools import ToolUse
from quire.server.schemas.requests import Tool
from quire.text.parsing.default_tool_format import JSON_CALLS
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.tool_calls import ToolCallExtractor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.tools import quire_tool_parsers
from quire_testing import byte_tokenizer, tiny_llama

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
FRAMED = {parser.name: parser for parser in (*quire_tool_parsers(), JSON_CALLS) if parser.call_format}


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
    reader = ToolCallExtractor(parser, TOOLS, Registry(), calls_required=True)
    kinds = frozenset({"calls"})
    return ToolUse(extractor=reader, parser=parser, offered=tools, kinds=kinds, required=tools, max_calls=at_most)


@pytest.mark.parametrize("at_most", [1, 3])
@pytest.mark.parametrize("name", FRAMED)
def test_demanded_calls_fit_their_schemas(llm, name, at_most) -> None:
    use = use_of(FRAMED[name], at_most)
    for template in ("", "[ARGS]") if name == "mistral" else ("",):
        structured = use.required_constraint(template)
        params = SamplingParams(structured=structured, temperature=1, max_tokens=900, seed=1, n=2)
        for answer in llm.generate("hi", params, use_tqdm=False)[0].outputs:
            assert answer.finish_reason == "stop"
            said = OutputParser(tools=use.extractor).read(answer.text)
            assert said.content is None
            assert 1 <= len(said.calls) <= at_most
            for call in said.calls:
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3},
        "b": {"type": "object", "properties": {"c": {"enum": ["x y", {"d": [1, None]}]}}, "required": ["c"]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
NESTED["properties"]["b"]["additionalProperties"] = False


@pytest.mark.parametrize("name", FRAMED)
def test_demanded_calls_have_no_white_space_but_what_the_model_was_taught(llm, name) -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "add", "parameters": NESTED}})
    use = replace(use_of(FRAMED[name], 2), required=[tool], offered=[tool])
    breaks = dict.fromkeys(b"\n\t\r", 100.0)  # as a weak model does; no string may have them
    params = SamplingParams(
        structured=use.required_constraint(""), temperature=1, max_tokens=900, seed=4, n=4, logit_bias=breaks
    )
    for answer in llm.generate("hi", params, use_tqdm=False)[0].outputs:
        assert answer.finish_reason == "stop"
        frame = FRAMED[name].call_format("add", "")
        calls = OutputParser(tools=use.extractor).read(answer.text).calls
        for call in calls:
            assert f"{frame.before}{json.dumps(json.loads(call.arguments))}{frame.after}" in answer.text
            jsonschema.validate(json.loads(call.arguments), NESTED)
        assert calls


def test_an_answer_that_may_be_a_call_instead_has_the_white_space_that_it_may_have(tokenizer) -> None:
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    use = replace(use_of(FRAMED["hermes"], None), required=(), offered=tools)
    form = StructuredSpec(kind="json_schema", source=json.dumps(SCHEMAS["add"]), whitespace_pattern="[ ]{0,2}")
    frame = FRAMED["hermes"].call_format("add", "")
    grammar = compiled(use.format_constraint("", form, None), tokenizer)
    assert keeps_to(grammar, tokenizer, GOOD)
    assert keeps_to(grammar, tokenizer, SPACED)
    assert keeps_to(grammar, tokenizer, f"{frame.before}{GOOD}{frame.after}")
    assert not keeps_to(grammar, tokenizer, f"{frame.before}{SPACED}{frame.after}")


@pytest.mark.parametrize("name", [name for name, parser in FRAMED.items() if parser.start])
def test_strict_tools_leave_an_answer_without_calls_free(llm, name) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    offered = [Tool.model_validate(tool) for tool in strict]
    use = replace(use_of(FRAMED[name], None), required=(), offered=offered, kinds=frozenset({"structural_tag"}))
    structured = use.strict_constraint("")
    assert (structured is None) == name.startswith("llama")
    letters = dict.fromkeys(b"abc {<[\n", 50.0)  # a model with random weights writes no text by itself
    texts = [
        llm.generate("hi", SamplingParams(structured=held, max_tokens=12, seed=1, logit_bias=letters), use_tqdm=False)
        for held in (None, structured)
    ]
    assert texts[0][0].outputs[0].text == texts[1][0].outputs[0].text


GOOD, BAD, SPACED = '{"a": 7, "b": "x"}', '{"a": 70, "b": "x"}', '{"a":  7, "b": "x"}'


@pytest.mark.parametrize("name", [name for name, parser in FRAMED.items() if parser.start and "llama" not in name])
def test_a_call_of_a_strict_tool_must_fit_wherever_it_stands(name, tokenizer) -> None:
    parser = FRAMED[name]
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    tools[0].function.strict = True
    use = replace(use_of(parser, None), required=(), offered=tools, kinds=frozenset({"structural_tag"}))
    grammar = compiled(use.strict_constraint(""), tokenizer)
    for tool, arguments, fits in (
        ("add", GOOD, True),
        ("add", BAD, False),
        ("add", SPACED, False),
        ("now", '{ "c" : 7 }', True),
    ):
        frame = parser.call_format(tool, "")
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
    use = replace(use_of(parser, None), required=tools, offered=tools)
    grammar = compiled(use.required_constraint(""), tokenizer)
    for odd, arguments, fits in (*((odd, GOOD, True) for odd in ODD), (ODD[0], "{}", True), (ODD[1], "{}", False)):
        frames = [parser.call_format(each, "") for each in (odd, ODD[2])]
        said = [frame.before + each + frame.after for frame, each in zip(frames, (arguments, GOOD), strict=True)]
        text = frames[0].first + frames[0].separator.join(said) + frames[0].last
        assert keeps_to(grammar, tokenizer, text) == fits
        made = OutputParser(tools=use.extractor).read(text).calls
        assert [(call.name, call.arguments) for call in made] == [(odd, arguments), (ODD[2], GOOD)]


@pytest.fixture(scope="module")
def client(folder):
    flags = ("--served-model-name", "tiny", "--device", "cpu", "--num-pages", "256")
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice")
    with (
        serving(folder, *flags, *parsers) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield client


BROKEN = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
FORM = {"type": "json_schema", "json_schema": {"name": "it", "schema": BROKEN}}
TOOL = {"type": "function", "function": {"name": "sort", "parameters": BROKEN}}
SORTS = "the parameters of the tool 'sort': it does not enforce `uniqueItems`."


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [*TOOLS, TOOL], "tool_choice": "required"}, "tools[2].function.parameters", SORTS),
        (
            {"tools": [TOOL, *TOOLS], "tool_choice": {"type": "function", "function": {"name": "sort"}}},
            "tools[0].function.parameters",
            SORTS,
        ),
        ({"tools": [*TOOLS, TOOL], "response_format": {"type": "json_object"}}, "tools[2].function.parameters", SORTS),
        ({"tools": TOOLS, "response_format": FORM}, "response_format", "`response_format`: it does not enforce"),
        ({"response_format": FORM}, "response_format", "it does not enforce `uniqueItems`."),
        ({"extra_body": {"guided_json": BROKEN}}, "guided_json", "it does not enforce `uniqueItems`."),
        ({"extra_body": {"structured_outputs": {"json": BROKEN}}}, "structured_outputs", "it does not enforce"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_kept_is_refused_by_the_field_it_stands_in(client, fields, param, said, stream):
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": stream}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask, **fields)
    assert said in caught.value.body["message"]
    assert (caught.value.status_code, caught.value.param) == (400, param)
    assert "llguidance" not in caught.value.body["message"]


def test_demanded_calls_come_after_the_reasoning_which_ends_where_its_budget_does(client) -> None:
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
    answer = client.chat.completions.create(**ask, max_tokens=99, response_format=form, extra_body=asked["extra_body"])
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMAS["add"])
    assert answer.choices[0].message.reasoning
    with pytest.raises(openai.BadRequestError, match="is for chat"):
        client.completions.create(model="tiny", prompt="x", extra_body={"thinking_token_budget": 1})
