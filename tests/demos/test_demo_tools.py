"""The demo that calls tools: its generator, its split, its template and what the shipped weights do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from demo_scripts import modules_of
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from quire_plugins.architectures.llama import quire_demo_models as demo_models
from quire_plugins.tools import quire_tool_parsers as tool_parsers

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "demo_models"
(DEMO,) = (demo for demo in demo_models() if demo.name == "demo-tools")
FOLDER = DEMO.folder()
MODULES = (
    "data.chat.reply_styles",
    "data.tools.offered_tools",
    "data.tools.json_forms",
    "data.tools.tool_dialogues",
    "models.tools_tokenizer",
    "evaluation.tool_answers",
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    with modules_of(*MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def first(stream: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(stream, count))


# --- the generator -----------------------------------------------------------------------------------


def test_equal_seeds_give_equal_dialogues_and_others_do_not(demo: Any) -> None:
    lessons = demo.tool_dialogues
    assert first(lessons.training_dialogues(7), 40) == first(lessons.training_dialogues(7), 40)
    assert first(lessons.training_dialogues(7), 40) != first(lessons.training_dialogues(8), 40)
    assert lessons.held_out_questions(24, 1) == lessons.held_out_questions(24, 1)


def test_training_asks_nothing_and_offers_no_tool_that_is_held_out(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons, is_held_out = demo.tool_dialogues, demo.reply_styles.is_held_out
    drawn: list[str] = []
    call, extraction = lessons.Dialogue.call, lessons._forms

    def noted(self: Any, *arguments: Any) -> Any:
        made = call(self, *arguments)
        drawn.append(made.key)
        return made

    def noted_forms(*arguments: Any, **named: Any) -> Any:
        made = extraction(*arguments, **named)
        drawn.extend(made[1])
        return made

    monkeypatch.setattr(lessons.Dialogue, "call", noted)
    monkeypatch.setattr(lessons, "_forms", noted_forms)
    dialogues = first(lessons.training_dialogues("split"), 2000)
    assert len(drawn) > 2000
    assert not any(is_held_out(key) for key in drawn)
    names = {tool["function"]["name"] for _, tools in dialogues for tool in tools}
    assert len(names) > 1000
    assert not any(demo.offered_tools.is_new_name(name) for name in names)


def test_held_out_questions_are_held_out_in_equal_share_and_all_their_tools_are_new(demo: Any) -> None:
    lessons = demo.tool_dialogues
    questions = lessons.held_out_questions(120)
    assert [q.family for q in questions] == [family for family in lessons.FAMILIES for _ in range(20)]
    assert all(demo.reply_styles.is_held_out(key) for q in questions for key in q.keys)
    assert all(q.keys for q in questions if q.family not in ("talk", "refusal"))
    assert all(demo.offered_tools.is_new_name(tool["function"]["name"]) for q in questions for tool in q.tools)


def test_every_call_fits_the_schema_of_a_tool_on_offer(demo: Any) -> None:
    checked = 0
    for messages, tools in first(demo.tool_dialogues.training_dialogues("fit"), 400):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        for message in messages:
            for made in message.get("tool_calls", ()):
                jsonschema.validate(made["function"]["arguments"], schemas[made["function"]["name"]])
                checked += 1
    assert checked > 400


def test_arguments_are_copied_from_what_the_user_said(demo: Any) -> None:
    for question in demo.tool_dialogues.held_out_questions(60, "copied"):
        if question.family != "call":
            continue
        said = question.messages[-1]["content"].lower()
        (made,) = question.answer["tool_calls"]
        properties = next(t for t in question.tools if t["function"]["name"] == made["function"]["name"])["function"][
            "parameters"
        ]["properties"]
        for name, value in made["function"]["arguments"].items():
            is_free = "enum" not in properties[name] and properties[name]["type"] != "boolean"
            assert not is_free or str(value).lower() in said


def test_filled_schemas_are_valid_and_their_values_are_in_the_text(demo: Any) -> None:
    rng = demo.json_forms.random.Random(3)
    for _ in range(300):
        made = demo.json_forms.extraction(rng)
        jsonschema.validate(made.filled, made.schema)
        assert list(made.filled) == list(made.schema["properties"])
        for value in made.filled.values():
            words = value if isinstance(value, list) else [value]
            assert all(str(w) in made.text for w in words) or value in (True, False, "positive", "negative", "neutral")


def test_a_result_is_answered_with_every_value_it_has(demo: Any) -> None:
    checked = 0
    for question in demo.tool_dialogues.held_out_questions(240, "results"):
        if question.family != "result" or "error" in question.messages[-1]["content"]:
            continue
        result = json.loads(question.messages[-1]["content"])
        named = [value for name, value in result.items() if name not in ("id", "request", "version")]
        assert all(str(value) in question.answer["content"] for value in named), question
        checked += 1
    assert checked > 20


# --- template and tokens -----------------------------------------------------------------------------


def test_the_template_shows_tools_calls_and_results(tokenizer: PreTrainedTokenizerFast) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "São Paulo"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in São Paulo?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": '{"sky": "clear"}'},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[WEATHER], tokenize=False, add_generation_prompt=True)
    called = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "São Paulo"}}\n</tool_call>'
    assert text == (
        "<|im_start|>system\nBe brief.\n\n<tools>\n"
        '{"name": "get_weather", "description": "The weather of a city.", "parameters": {"city": {"type": "string"}, '
        '"unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}\n</tools><|im_end|>\n'
        "<|im_start|>user\nWeather in São Paulo?<|im_end|>\n"
        f"<|im_start|>assistant\n{called}\n{called}<|im_end|>\n"
        "<|im_start|>tool\n<tool_response>\nsunny\n</tool_response>\n"
        '<tool_response>\n{"sky": "clear"}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_the_template_without_tools_and_system_message_is_plain(tokenizer: PreTrainedTokenizerFast) -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == plain
    offered = tokenizer.apply_chat_template(messages, tools=[bare], tokenize=False)
    assert offered == f'<|im_start|>system\n<tools>\n{{"name": "now", "parameters": {{}}}}\n</tools><|im_end|>\n{plain}'


def test_the_hermes_parser_knows_the_template_and_its_marks_are_tokens_but_stay_in_the_text(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    (parser,) = (parser for parser in tool_parsers() if parser.name == "hermes")
    assert parser.matches(tokenizer.chat_template)
    assert {"<tool_call>", "</tool_call>"} <= set(tokenizer.get_vocab())
    assert not {"<tool_call>", "</tool_call>"} & set(tokenizer.all_special_tokens)


def test_the_encoder_learns_what_the_assistant_says_and_nothing_else(
    demo: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    encoder, ignore = demo.tools_tokenizer.Encoder(tokenizer), demo.tools_tokenizer.IGNORE
    for messages, tools in first(demo.tool_dialogues.training_dialogues("template"), 60):
        ids, targets = encoder.dialogue(messages, tools)
        text = tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False)
        assert [*ids, tokenizer.vocab["Ċ"]] == tokenizer.encode(text, add_special_tokens=False)
        learned = tokenizer.decode([target for target in targets if target != ignore])
        parts = text.split("<|im_start|>assistant\n")[1:]
        assert learned == "".join(part.split("<|im_end|>")[0] + "<|im_end|>" for part in parts)


def test_a_dialogue_in_a_batch_sees_only_itself(demo: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = demo.tools_tokenizer.Encoder(tokenizer)
    batch = encoder.batch("alone", 3, 400)
    stream = demo.tool_dialogues.training_dialogues("alone")
    ids = encoder.dialogue(*next(stream))[0]
    following = encoder.dialogue(*next(stream))[0]
    assert batch.ids[0, : len(ids)].tolist() == ids[:400]
    seen = batch.visible[0, 0, len(ids)].nonzero()[:, 0].tolist()
    assert seen == [len(ids)]
    last = min(len(ids) + len(following), 400) - 1
    assert batch.visible[0, 0, last].nonzero()[:, 0].tolist() == list(range(len(ids), last + 1))


def test_a_name_is_the_same_tokens_in_a_sentence_and_in_json(tokenizer: PreTrainedTokenizerFast) -> None:
    for name in ("Zürich", "Vromatiland", "water the plants", "A7-315"):
        inner = tokenizer.tokenize(f'{{"city": "{name}"}}')
        spoken = tokenizer.tokenize(f"Go to {name} now")
        alone = tokenizer.tokenize(name)
        for where in (inner, spoken):
            assert any(where[i : i + len(alone)] == alone for i in range(len(where)))


def test_the_tokenizer_restores_any_text(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in ('{"a_b": [1, "x"]}', "Ünïcödé 東京 🙂\n- a", "  two  spaces ", "<tool_call>\n{}\n</tool_call>"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True) == text


# --- the shipped model -------------------------------------------------------------------------------


def test_the_demo_is_small_and_in_hugging_face_format() -> None:
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in FOLDER.iterdir()} == {*names, "chat_template.jinja"}
    assert (FOLDER / "model.safetensors").stat().st_size <= 6_000_000
    config = json.loads((FOLDER / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")


def test_the_shipped_template_is_that_of_the_scripts(demo: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.chat_template == demo.tools_tokenizer.CHAT_TEMPLATE


def test_answers_are_read_as_calls_or_as_text(demo: Any) -> None:
    read = demo.tool_answers.Answer.read
    assert read('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>').calls == (("f", {"a": 1}),)
    assert read(" Hello. ").content == "Hello."
    for broken in ("<tool_call>\nnothing\n</tool_call>", '<tool_call>\n{"name": "f"}\n</tool_call>'):
        assert (read(broken).calls, read(broken).content) == ((), broken)


def test_the_shipped_model_answers_held_out_questions(
    demo: Any, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    questions = demo.tool_dialogues.held_out_questions(48, "test")
    shares = demo.tool_answers.score(questions, demo.tool_answers.answer(model, tokenizer, questions))
    assert set(shares) == {*demo.tool_dialogues.FAMILIES, "overall"}
    assert shares["overall"] >= 0.9, shares
