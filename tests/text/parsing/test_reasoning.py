"""Reasoning is separated from the answer: split delimiters, prompts that open or close it, token counts, limits."""

from dataclasses import dataclass
from itertools import combinations

import pytest
import torch

from quire.errors import BadRequest, ConfigError
from quire.params.sampling import SamplingParams
from quire.records import ReasoningParser, Registry, ToolParser
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.reasoning import (
    HOOK,
    ReasoningDelta,
    ReasoningExtractor,
    ReasoningTokenCounter,
    choose_reasoning,
)
from quire.text.parsing.tool_calls import ToolCallExtractor, ToolDelta
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.reasoning.budget import BudgetState, ReasoningBudget
from quire_plugins.reasoning.formats import quire_reasoning_parsers
from quire_plugins.tools import quire_tool_parsers
from quire_testing import byte_tokenizer

PARSERS = {parser.name: parser for parser in quire_reasoning_parsers()}
REGISTRY = Registry(records={HOOK: PARSERS})
QWEN = PARSERS["qwen3"]


def both(stream, pieces):
    parts = [part for piece in pieces for part in stream.push(piece)] + stream.flush()
    thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    return thoughts, "".join(part for part in parts if isinstance(part, str))


def splits(text):
    yield tuple(text)
    yield (text,)
    for i, j in combinations(range(1, len(text)), 2):
        yield text[:i], text[i:j], text[j:]


@pytest.mark.parametrize("name", PARSERS)
def test_reasoning_is_separated_however_the_text_is_split(name: str) -> None:
    parser = PARSERS[name]
    reader = ReasoningExtractor.from_prompt("prompt", parser)
    text = f"\n{parser.start}\nhm < é\n\nso\n{parser.end}\n\nThe {parser.end} x"
    for pieces in splits(text):
        assert both(reader.stream(), pieces) == ("hm < é\n\nso", f"The {parser.end} x")


@pytest.mark.parametrize(
    ("name", "prompt", "text", "expected"),
    [
        ("qwen3", "…<think>\n", "hm</think>yes", ("hm", "yes")),
        ("qwen3", "…<think>\n\n</think>\n\n", "yes</think>", ("", "yes</think>")),
        ("qwen3", "…", "hm</think>yes", ("hm", "yes")),
        ("qwen3", "…", "hm", ("hm", "")),
        ("qwen3", "…", "<thi", ("<thi", "")),
        ("qwen3", "…", "<think>\n\n</think>\n\nyes", ("", "yes")),
        ("glm45", "…", " yes </think>", ("", " yes </think>")),
        ("glm45", "…<think>", "hm</think>yes", ("hm", "yes")),
        ("gemma4", "…", "<|channel>thought\nhm<channel|>yes", ("hm", "yes")),
        ("gemma4", "…", "<|chan", ("", "<|chan")),
    ],
)
def test_the_prompt_says_where_an_answer_begins(name: str, prompt: str, text: str, expected: tuple[str, str]) -> None:
    reader = ReasoningExtractor.from_prompt(prompt, PARSERS[name])
    for pieces in splits(text):
        assert both(reader.stream(), pieces) == expected


def test_a_call_within_the_reasoning_is_none() -> None:
    parser: ToolParser = next(iter(quire_tool_parsers()))
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = OutputParser(ReasoningExtractor.from_prompt("", QWEN), ToolCallExtractor(parser, [], Registry()))
    text = f"<think>{call}</think>\n\n{call}"
    answer = reader.read(text)
    assert (answer.content, answer.reasoning, len(answer.calls)) == (None, call, 1)
    stream = reader.stream()
    parts = [part for piece in text for part in stream.push(piece)] + stream.flush()
    assert "".join(part.text for part in parts if isinstance(part, ReasoningDelta)) == call
    assert [part.name for part in parts if isinstance(part, ToolDelta) and part.id] == ["f"]
    assert not any(isinstance(part, str) for part in parts)
    assert stream.num_calls == 1


def test_an_answer_of_reasoning_alone_has_no_content() -> None:
    answer = OutputParser(ReasoningExtractor.from_prompt("", QWEN)).read("hm")
    assert (answer.content, answer.reasoning) == (None, "hm")
    answer = OutputParser(ReasoningExtractor.from_prompt("", PARSERS["granite"])).read("yes")
    assert (answer.content, answer.reasoning) == ("yes", None)


def test_a_parser_is_chosen_by_name_or_when_asked_by_the_template() -> None:
    assert choose_reasoning(REGISTRY, None, "<think></think><|im_start|>") is None
    assert choose_reasoning(REGISTRY, "auto", "<think></think><|im_start|>") is QWEN
    assert choose_reasoning(REGISTRY, "auto", "<think></think><｜Assistant｜>") is PARSERS["deepseek_r1"]
    assert choose_reasoning(REGISTRY, "auto", "plain") is choose_reasoning(REGISTRY, "auto", None) is None
    assert choose_reasoning(REGISTRY, "mistral", None) is PARSERS["mistral"]
    with pytest.raises(ConfigError, match="not one of auto, deepseek_r1"):
        choose_reasoning(REGISTRY, "qwen", None)
    twin = ReasoningParser("twin", "<t>", "</t>", QWEN.matches)
    with pytest.raises(ConfigError, match="qwen3, twin"):
        choose_reasoning(Registry(records={HOOK: {**PARSERS, "twin": twin}}), "auto", "</think><|im_start|>")


def test_tokens_of_reasoning_are_counted_once_as_they_come(tmp_path) -> None:
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    ids = tokenizer.encode("<think>abc</think>de", add_special_tokens=False)
    counter = ReasoningTokenCounter(ReasoningExtractor.from_prompt("…", PARSERS["glm45"]), tokenizer)
    inside = len("abc") + len("</think")  # the last letter of the delimiter ends it
    assert [counter.update(ids[:count]) for count in range(len(ids) + 1)] == [
        max(0, min(count - len("<think>"), inside)) for count in range(len(ids) + 1)
    ]
    assert ReasoningTokenCounter(ReasoningExtractor.from_prompt("</think>", QWEN), tokenizer).update(ids) == 0


# --- the limit -------------------------------------------------------------------------------------


@dataclass
class Row:
    state: BudgetState
    output_ids: list[int]


def written(tokens, wishes, inside=True, start=(7, 8), end=(1, 2, 3), count=12):
    """What a model writes that wishes these ids, one after the other."""
    processor = ReasoningBudget()
    asked = {"tokens": tokens, "start": list(start), "end": list(end), "inside": inside}
    state = processor.start(SamplingParams(extra={"reasoning_limit": asked}))
    row = Row(state, [])
    for i in range(count):
        logits = torch.zeros(1, 10)
        logits[0, wishes[i % len(wishes)]] = 1.0
        processor.apply(logits, [row])
        row.output_ids.append(int(logits[0].argmax()))
    again = Row(processor.start(SamplingParams(extra={"reasoning_limit": asked})), row.output_ids)
    assert again.state.next_id(row.output_ids) == state.next_id(row.output_ids)  # as after a preemption
    return row.output_ids


def test_reasoning_ends_where_its_limit_is() -> None:
    assert written(4, [5], count=9) == [5, 5, 5, 5, 1, 2, 3, 5, 5]
    assert written(0, [5], count=5) == [1, 2, 3, 5, 5]
    assert written(4, [5, 5, 5, 1], count=9) == [5, 5, 5, 1, 2, 3, 5, 1, 5]  # it was about to end by itself
    assert written(9, [5, 1, 2, 3], count=8) == [5, 1, 2, 3] * 2
    assert written(2, [5, 7, 8, 6], inside=False, count=9) == [5, 7, 8, 6, 5, 1, 2, 3, 5]
    assert written(2, [5], inside=False, count=6) == [5] * 6


def test_a_limit_must_make_sense() -> None:
    assert ReasoningBudget().start(SamplingParams()) is None
    for wrong in ({}, {"tokens": 1, "start": [1], "end": [], "inside": True}, {"tokens": 1, "start": "a", "end": [1]}):
        with pytest.raises(BadRequest, match="reasoning_limit"):
            ReasoningBudget().start(SamplingParams(extra={"reasoning_limit": wrong}))
