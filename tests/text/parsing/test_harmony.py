"""Outputs that are messages on channels: reasoning, text and calls, parsed whole, in parts, and over HTTP."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
import tokenizers
from grammar_texts import compiled, keeps_to
from scripted_server import Scripted, streamed, talking
from tool_formats import FORMS
from tool_texts import ADD, CALLS, TOOLS, message

from quire import LLM, SamplingParams
from quire.errors import BadRequest
from quire.params.structured import StructuredSpec
from quire.records import Registry
from quire.server.openai.chat_reasoning import reasoning_bounds
from quire.server.openai.chat_tools import ToolUse
from quire.server.schemas.requests import Tool
from quire.text.parsing.channels import MAX_HEADER
from quire.text.parsing.default_tool_format import JSON_CALLS
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.reasoning import (
    HOOK,
    ReasoningDelta,
    ReasoningExtractor,
    ReasoningTokenCounter,
    choose_reasoning,
)
from quire.text.parsing.tool_calls import ToolCallExtractor, merge_parts
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.reasoning.formats import quire_reasoning_parsers
from quire_plugins.reasoning.harmony import ANALYSIS, CHANNELS
from quire_plugins.tools import harmony, hermes
from quire_testing import byte_tokenizer, tiny_llama

(TOOL_PARSER,) = harmony.parsers()
HERMES = next(iter(hermes.parsers()))
REASONING = {parser.name: parser for parser in quire_reasoning_parsers()}
PARSER = REASONING["openai_gptoss"]
OPEN = "…<|end|><|start|>assistant"
"""How a prompt ends."""
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}


def final(text, again="<|start|>assistant"):
    return f"{again}<|channel|>final<|message|>{text}<|return|>"


def thought(text, again=""):
    return f"{again}<|channel|>analysis<|message|>{text}<|end|>"


def reader_of(prompt, tools=True):
    reasoning = ReasoningExtractor.from_prompt(prompt, PARSER)
    return OutputParser(reasoning, ToolCallExtractor(TOOL_PARSER, TOOLS, Registry()) if tools else None, prompt)


def in_pieces(reader, pieces):
    """(reasoning, content, calls) of a stream."""
    stream = reader.stream()
    parts = [part for piece in pieces for part in stream.push(piece)] + stream.flush()
    thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    content, calls = merge_parts([part for part in parts if not isinstance(part, ReasoningDelta)])
    assert stream.num_calls == len(calls)
    return thoughts, content or "", [(call.name, call.arguments) for call in calls]


def cuts(text):
    yield (text,)
    yield tuple(text)
    places = list(combinations(range(1, len(text)), 2))
    for i, j in places[:: max(1, len(places) // 600)]:
        yield text[:i], text[i:j], text[j:]


ANSWERS = {
    "an answer": (OPEN, thought("hm < é") + final("So."), ("hm < é", "So.", [])),
    "no reasoning": (OPEN, final("So.", again=""), ("", "So.", [])),
    "thoughts and texts on lines of their own": (
        OPEN,
        thought("a") + thought("b", CHANNELS.separator)
        + f"{CHANNELS.separator}<|channel|>commentary<|message|>I plan.<|end|>" + final("So."),
        ("a\nb", "I plan.\nSo.", []),
    ),
    "a call": (OPEN, thought("hm") + "<|start|>assistant" + message("add", ADD), ("hm", "", [("add", CALLS[0])])),
    "a recipient before the channel": (
        OPEN,
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        ("", "", [("add", '{"a": 1}')]),
    ),
    "a call on the channel of the reasoning, after which it goes on": (
        OPEN,
        '<|channel|>analysis to=functions.add code<|message|>{"a": 1}<|call|>\n' + thought("hm", "<|start|>assistant"),
        ("hm", "", [("add", '{"a": 1}')]),
    ),
    "an end that is missing": (OPEN, "<|channel|>final<|message|>So<|chan", ("", "So<|chan", [])),
    "a message begun by the prompt": (OPEN + "<|channel|>final<|message|>Once <", " upon<|end|>", ("", " upon", [])),
    "reasoning begun by the prompt": (OPEN + ANALYSIS, "hm<|end|>" + final("So."), ("hm", "So.", [])),
    "a header begun by the prompt": (OPEN + "<|channel|>", "analysis<|message|>hm<|end|>", ("hm", "", [])),
    "no channels at all": ("no", "Just words.", ("", "Just words.", [])),
    "no channels where some were expected": (OPEN, "Just words <", ("", "Just words <", [])),
    "a header without end": (OPEN, "w" * MAX_HEADER + " words", ("", "w" * MAX_HEADER + " words", [])),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_messages_are_separated_however_the_text_is_split(name) -> None:
    prompt, text, (thoughts, content, calls) = ANSWERS[name]
    calls = [(name, call if isinstance(call, str) else call.arguments) for name, call in calls]
    plain = [(name, json.loads(arguments)) for name, arguments in calls]
    whole = reader_of(prompt).read(text)
    assert (whole.reasoning or "", whole.content or "") == (thoughts, content)
    for pieces in cuts(text):
        said, shown, made = in_pieces(reader_of(prompt), pieces)
        assert (said, shown, [(name, json.loads(given)) for name, given in made]) == (thoughts, content, plain)


def test_unknown_channels_stay_as_they_were_written() -> None:
    text = thought("hm") + "<|start|>assistant" + message("add", ADD)
    alone = OutputParser(tools=ToolCallExtractor(TOOL_PARSER, TOOLS, Registry()), prompt=OPEN).read(text)
    assert (alone.content, alone.reasoning, [call.name for call in alone.calls]) == (thought("hm"), None, ["add"])
    answer = reader_of(OPEN, tools=False).read(text)
    assert (answer.reasoning, answer.content, answer.calls) == ("hm", "<|start|>assistant" + message("add", ADD), [])


@pytest.mark.parametrize("name", ["hermes", "json"])
def test_calls_in_another_format_are_sought_in_the_text(name) -> None:
    parser = {"hermes": HERMES, "json": JSON_CALLS}[name]
    frame = parser.call_format("add", "")
    call = frame.first + frame.before + '{"a": 1}' + frame.after + frame.last
    reasoning = ReasoningExtractor.from_prompt(OPEN, PARSER)
    assert reasoning_bounds(reasoning, parser).optional_delimiters is None
    reader = OutputParser(reasoning, ToolCallExtractor(parser, TOOLS, Registry(), calls_required=True), OPEN)
    for text, thoughts in ((call, ""), (thought("hm") + final(call), "hm")):
        for pieces in ((text,), tuple(text)):
            assert in_pieces(reader, pieces) == (thoughts, "", [("add", '{"a": 1}')])
        whole = reader.read(text)
        assert (whole.reasoning or "", whole.content, [made.name for made in whole.calls]) == (thoughts, None, ["add"])


def test_a_text_streams_as_it_comes_and_so_do_arguments() -> None:
    stream = reader_of(OPEN).stream()
    assert stream.push("<|channel|>final<|message|>") == []
    assert [stream.push(word) for word in ("Just ", "words.")] == [["Just "], ["words."]]
    stream = reader_of(OPEN).stream()
    (first, second) = stream.push('<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1,')
    assert (first.name, second.arguments) == ("add", '{"a": 1,')


def test_the_parser_is_chosen_from_the_template_by_default() -> None:
    registry = Registry(records={HOOK: REASONING})
    template = FORMS["openai"].source
    assert choose_reasoning(registry, None, template) is choose_reasoning(registry, "auto", template) is PARSER
    assert choose_reasoning(registry, None, "<think></think><|im_start|>") is None
    assert choose_reasoning(registry, None, None) is None


def test_tokens_of_all_reasoning_are_counted(tmp_path) -> None:
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    counter = ReasoningTokenCounter(ReasoningExtractor.from_prompt(OPEN, PARSER), tokenizer, OPEN)
    text = "<|channel|>analysis<|message|>abc<|call|><|start|>assistant<|channel|>analysis<|message|>de"
    ids = list(text.encode())
    assert counter.update(ids) == len("abc") + len("<|call|") + len("de")


# --- over HTTP -------------------------------------------------------------------------------------


async def test_reasoning_and_a_call_and_their_way_back_to_the_model(tmp_path) -> None:
    text = thought("I must add.") + "<|start|>assistant" + message("add", ADD)
    form = FORMS["openai"]
    given = {"tool_parser": TOOL_PARSER, "reasoning_parser": PARSER}
    pretend = Scripted(text, text, thought("Three.") + final("It is 3."), per_step=5)
    async with talking(tmp_path, pretend, template=form.source, **given) as client:
        (first,) = (await client.chat.completions.create(**ASK, tools=TOOLS)).choices
        content, reasoning, calls, finish, usage = await streamed(client, **ASK, tools=TOOLS)
        back = [
            first.message.model_dump(),
            {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "3"},
        ]
        last = await client.chat.completions.create(model="tiny", messages=[*ASK["messages"], *back], tools=TOOLS)
    assert (first.message.content or "", first.message.reasoning) == (content, reasoning) == ("", "I must add.")
    assert [json.loads(call.function.arguments) for call in first.message.tool_calls] == [ADD]
    assert [json.loads(call["arguments"]) for call in calls] == [ADD]
    assert (first.finish_reason, finish) == ("tool_calls", "tool_calls")
    assert not pretend.requests[0].params.skip_special_tokens  # which one of the marks is to this tokenizer
    assert usage.completion_tokens_details.reasoning_tokens == len("I must add.") + len("<|end|")
    assert (last.choices[0].message.content, last.choices[0].message.reasoning) == ("It is 3.", "Three.")
    assert pretend.prompt().startswith(pretend.prompt(0) + "<|channel|>analysis<|message|>I must add.")
    assert "<|start|>functions.add to=assistant<|channel|>commentary<|message|>3" in pretend.prompt()


async def test_constraints_begin_where_the_answer_does(tmp_path) -> None:
    form = FORMS["openai"]
    pretend = Scripted(final("{}", again=""))
    json_object = {"type": "json_object"}
    given = {"tool_parser": TOOL_PARSER, "reasoning_parser": PARSER}
    async with talking(tmp_path, pretend, template=form.source, **given) as client:
        for asked in ({"response_format": json_object}, {"response_format": json_object, "tools": TOOLS}):
            answer = await client.chat.completions.create(**ASK, **asked)
            assert answer.choices[0].message.content == "{}"
        await client.chat.completions.create(**ASK, tools=TOOLS, tool_choice="required")
        messages = [*ASK["messages"], {"role": "assistant", "content": "So"}]
        more = {"add_generation_prompt": False, "continue_final_message": True}
        asked = {"model": "tiny", "messages": messages, "extra_body": more, "response_format": json_object}
        await client.chat.completions.create(**asked)
    held = [request.params.structured for request in pretend.requests]
    answer = "<|channel|>final<|message|>"
    assert [(one.kind, one.after) for one in held] == [
        *[("json_object", answer)] * 2,
        ("calls", None),
        ("json_object", None),
    ]
    source = json.loads(held[2].source)
    assert source["lead"] == {"begin": ANALYSIS, "end": "<|end|><|start|>assistant"}
    assert [tag["begin"] for tag in source["tags"]] == [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>" for name in ("add", "look")
    ]


def test_demanded_calls_leave_room_for_reasoning(tmp_path) -> None:
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))  # to which one of the marks is a token and the others are text
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    frame = TOOL_PARSER.call_format("f", "")
    for end in ("<|end|>", "</think>", "over <|end|>"):
        source = {
            "tags": [{"begin": frame.before, "schema": schema, "end": frame.after}],
            **{"at_least": 1, "at_most": 2, "separator": frame.separator},
            "lead": {"begin": ANALYSIS, "end": end + CHANNELS.separator},
        }
        grammar = compiled(StructuredSpec(kind="calls", source=json.dumps(source)), tokenizer)
        call = frame.before + '{"a": 1}'
        before = f"{ANALYSIS}hm <|en < {{é}}{end}{CHANNELS.separator}"
        for text, fits in {
            call: True,
            call + frame.separator + call: True,
            before + call: True,
            before + call + frame.separator + call: True,
            before: False,
            before + final("So.", again=""): False,
            before + before + call: False,
            ANALYSIS + "hm": False,
            "So.": False,
        }.items():
            assert keeps_to(grammar, tokenizer, text) == fits, text
    for wrong in (5, {"begin": "a"}, {"begin": "", "end": "b"}):
        with pytest.raises(BadRequest, match="lead"):
            compiled(StructuredSpec(kind="calls", source=json.dumps({**source, "lead": wrong})), tokenizer)


@pytest.fixture(scope="module")
def with_marks(tmp_path_factory):
    """A tiny model to which the marks of a call are tokens, the last of which ends its answers, as with gpt-oss."""
    folder = tiny_llama(tmp_path_factory.mktemp("marks"), max_position_embeddings=1024)
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    marks = ["<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]
    tokenizer.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.save(path)
    ends = {"eos_token_id": [tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<|call|>")]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    return folder


def test_a_demanded_call_ends_where_its_mark_does(with_marks) -> None:
    tools = [Tool.model_validate(tool) for tool in TOOLS[:1]]
    tools[0].function.parameters = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
    tools[0].function.parameters["additionalProperties"] = False
    reader = ToolCallExtractor(TOOL_PARSER, TOOLS, Registry(), calls_required=True)
    use = ToolUse(extractor=reader, parser=TOOL_PARSER, offered=tools, kinds=frozenset({"calls"}), required=tools)
    bounds = reasoning_bounds(ReasoningExtractor.from_prompt(OPEN, PARSER), TOOL_PARSER)
    held = replace(use.required_constraint("", None, bounds.optional_delimiters), any_whitespace=False)
    params = {"structured": held, "temperature": 1, "seed": 1, "max_tokens": 200, "skip_special_tokens": False, "n": 4}
    with LLM(str(with_marks), device="cpu", num_pages=128) as llm:
        call = llm.get_tokenizer().vocab["<|call|>"]
        bias = {ord("c"): 50.0, call: 50.0}  # no reasoning, and the end that models of this kind write
        (given,) = llm.generate("hi", SamplingParams(**params, logit_bias=bias), use_tqdm=False)
    for output in given.outputs:
        assert (output.finish_reason, output.token_ids[-1]) == ("stop", call)
        answer = OutputParser(None, reader).read(output.text)
        assert answer.content is None
        assert [(made.name, json.loads(made.arguments)["a"] in (1, 22)) for made in answer.calls] == [("add", True)]
