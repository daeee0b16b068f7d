"""Hooks that decide which token is next and whose turn it is, and that read what was written."""

import json
from pathlib import Path

import pytest
from hook_rig import engine, generate
from plugin_site import PluginSite

from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import ToolCall
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.reasoning import ReasoningExtractor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt, Request
from quire_testing import (
    byte_tokenizer,
    check_drafter,
    check_grammar_backend,
    check_logits_processor,
    check_scheduler_policy,
    check_tool_parser,
)


def test_hook_logits_processors_change_the_outputs_of_requests_that_use_them(tour: PluginSite, model: Path) -> None:
    registry = load(["llama", "no-repeat"])
    check_logits_processor(registry.by_hook("quire_logits_processors")["no-repeat"], {"no_repeat_ngram_size": 2})
    made = engine(model, registry)
    free = generate(made, max_tokens=60)
    strict = generate(made, max_tokens=60, extra={"no_repeat_ngram_size": 1})
    assert len(set(free)) < len(free)
    assert len(set(strict)) == len(strict) == 60
    assert generate(made, max_tokens=60) == free


def test_hook_grammar_backends_constrain_the_output(tmp_path: Path, model: Path) -> None:
    registry = load(["llama", "choice"])
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    source = json.dumps(["yes", "yesterday", "no"])
    record = registry.by_hook("quire_grammar_backends")["choice"]
    check_grammar_backend(record, "choice", source, tokenizer=tokenizer, wrong_source="[]")
    answer = generate(engine(model, registry), structured=StructuredSpec(kind="choice", source=source), max_tokens=20)
    assert bytes(i for i in answer if i < 256).decode() in {"yes", "yesterday", "no"}


def test_hook_scheduler_policies_order_the_queue(tour: PluginSite, model: Path) -> None:
    registry = load(["llama", "short-first"], {"short-first": {"tokens_per_place": "2"}})
    check_scheduler_policy(
        registry.by_hook("quire_scheduler_policies")["short-first"], options={"tokens_per_place": 2.0}
    )
    made = engine(model, registry, scheduling_policy="short-first", max_num_seqs=1)
    for name, text in (("first", "ab"), ("long", "abcdefghijkl"), ("short", "a")):
        prompt = Prompt(token_ids=tuple(text.encode()))
        made.add(Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=1, temperature=0)))
    order = []
    while made.has_work:
        order.extend(delta.request_id for delta in made.step() if delta.token_ids)
    assert order == ["first", "short", "long"] or order == ["short", "first", "long"]


def test_hook_drafters_propose_tokens_and_change_no_output(tour: PluginSite, model: Path) -> None:
    registry = load(["llama", "prompt-again"])
    record = registry.by_hook("quire_drafters")["prompt-again"]
    check_drafter(record)
    drafted = engine(model, registry, speculative_config={"method": "prompt-again", "adaptive": False})
    assert generate(drafted, max_tokens=30) == generate(engine(model, registry), max_tokens=30)
    assert generate(drafted, "a" * 20, max_tokens=16, allowed_token_ids=[97]) == [97] * 16
    counts = drafted.stats().speculation
    assert counts is not None
    assert counts.num_accepted_tokens_total == counts.num_draft_tokens_total == 12  # each step gives one token more


def test_a_drafter_says_what_is_wrong_with_its_settings(tour: PluginSite, model: Path) -> None:
    config = {"method": "prompt-again", "begin": 3}
    with pytest.raises(ConfigError, match="the method prompt-again has no setting 'begin'"):
        engine(model, load(["llama", "prompt-again"]), speculative_config=config)


def test_hook_tool_parsers_find_the_same_calls_however_text_is_cut() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    found = ToolCall("f", '{"x": 1}')
    check_tool_parser(
        load(["tools"]).by_hook("quire_tool_parsers")["hermes"],
        {call: [found], f"Well <b> {call}{call} done": [found, found], "no call < here": []},
        broken=["{", "[]", '{"arguments": {}}'],
        templates={"... <tool_call> ...": True, "plain": False},
    )


def test_hook_reasoning_parsers_are_records_of_delimiters() -> None:
    registry = load(["reasoning"])
    parser = registry.by_hook("quire_reasoning_parsers")["qwen3"]
    answer = OutputParser(ReasoningExtractor.from_prompt("", parser)).read("<think>hm</think>\n\nyes")
    assert (answer.reasoning, answer.content) == ("hm", "yes")
    assert registry.plugin_of("quire_reasoning_parsers", "qwen3") == "reasoning"
