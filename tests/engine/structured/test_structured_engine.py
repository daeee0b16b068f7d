"""Constraints beside everything else that a request may ask for, and beside other requests."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine_rig import Rig, make_rig, random_ids, rig_of
from jsonschema import Draft202012Validator
from lora_rig import Base
from structured_rig import PROMPT

from quire.errors import BadRequest
from quire.hooks import registry
from quire.params.sampling import BeamSearchParams, SamplingParams, StructuredOutputsParams
from quire.params.structured import StructuredSpec
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import END_ID, tiny_llama

REGEX = StructuredSpec(kind="regex", source="(?:[a-c][0-9]){2,4}!")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    made = make_rig(folder, registry.load(None), num_pages=225, max_num_batched_tokens=96)
    yield made
    made.engine.close()


def text_of(token_ids: list[int]) -> str:
    return bytes(i for i in token_ids if i != END_ID).decode()


def test_beams_keep_to_the_constraint(rig: Rig) -> None:
    for width in (1, 3, 4):
        request = rig.add(PROMPT, BeamSearchParams(beam_width=width, max_tokens=20, structured=REGEX))
        answers = {index: answer for (owner, index), answer in rig.drain().items() if owner == request}
        texts = [text_of(answers[i].token_ids) for i in range(width)]
        assert all(re.fullmatch(REGEX.source, text) for text in texts)
        assert len(set(texts)) == width


def test_beams_are_the_same_however_they_run(folder: Path, rig: Rig) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=14, structured=REGEX)
    rig.add(PROMPT, params)
    wanted = sorted(answer.token_ids for answer in rig.drain().values())
    for settings in ({"num_pages": 10, "preemption": "recompute"}, {"max_num_batched_tokens": 5, "max_num_seqs": 5}):
        small = make_rig(folder, registry.load(None), **settings)
        request = small.add(PROMPT, params)
        for number in range(6):
            small.add(random_ids(random.Random(number), 12), SamplingParams(temperature=0, max_tokens=20))
        found = [answer.token_ids for (owner, _), answer in small.drain().items() if owner == request]
        small.engine.close()
        assert sorted(found) == wanted


def test_beams_end_where_the_constraint_leaves_fewer_texts_than_beams(rig: Rig) -> None:
    asked = StructuredSpec(kind="choice", source='["yes", "no"]')
    request = rig.add(PROMPT, BeamSearchParams(beam_width=4, max_tokens=20, structured=asked))
    answers = [answer for (owner, _), answer in rig.drain().items() if owner == request]
    said = [text_of(answer.token_ids) for answer in answers if answer.last.finish_reason == "stop"]
    assert sorted(said) == ["no", "yes"]


def test_a_beam_search_with_a_constraint_needs_its_end() -> None:
    with pytest.raises(BadRequest, match="ignore_eos"):
        BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True, structured=REGEX)


def test_the_same_tokens_alone_and_among_32_of_every_kind(rig: Rig) -> None:
    schema = json.dumps({"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 2, "maxItems": 4})
    kinds: list[StructuredSpec | None] = [
        REGEX,
        StructuredSpec(kind="json_schema", source=schema),
        StructuredSpec(kind="choice", source='["yes", "yesterday", "no"]'),
        StructuredSpec(kind="grammar", source='start: "a" start "b" | "c"'),
        None,
        StructuredSpec(kind="regex", source="[0-9]{9}", after="e"),
        StructuredSpec(kind="json_schema", source='{"type":"boolean"}', backend="outlines"),
        StructuredSpec(kind="regex", source="[xyz]{5}", backend="outlines"),
    ]
    params = [
        SamplingParams(
            seed=i, max_tokens=20, structured=kinds[i % len(kinds)], temperature=i % 3 / 2, presence_penalty=i % 2
        )
        for i in range(32)
    ]
    together = rig.tokens([[*PROMPT, i] for i in range(32)], params)
    for i in range(0, 32, 3):
        assert rig.tokens([[*PROMPT, i]], [params[i]]) == [together[i]], params[i]


def test_tokens_that_are_forced_are_those_that_would_be_chosen(rig: Rig) -> None:
    properties = {"first name": {"enum": ["Ann", "Anne", "Bo"]}, "weight": {"type": "number"}, "ok": {"const": "yes"}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    asked = StructuredSpec(kind="json_schema", source=json.dumps(schema), any_whitespace=False)
    prompts = [[*PROMPT, i] for i in range(8)]
    jumping = [SamplingParams(seed=i, max_tokens=90, structured=asked, frequency_penalty=i % 2) for i in range(8)]
    walking = [replace(params, logprobs=0) for params in jumping]
    before = rig.engine.stats().num_steps_total
    found = rig.tokens(prompts, jumping)
    steps = rig.engine.stats().num_steps_total - before
    assert steps < max(map(len, found)) / 2
    assert found == rig.tokens(prompts, walking)


@pytest.mark.usefixtures("one_thread")
def test_constrained_rows_of_two_adapters_and_the_base_are_what_they_are_alone(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", "LlamaForCausalLM")
    paths = {
        "a": base.adapter("a", r=4, target_modules=["q_proj", "v_proj"]),
        "b": base.adapter("b", r=8, target_modules=["down_proj", "lm_head"]),
    }
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "t": {"enum": ["x", "yy", "zzz", "\u00e9"]}},
        "required": ["n", "t"],
        "additionalProperties": False,
    }
    as_json = StructuredSpec(kind="json_schema", source=json.dumps(schema), any_whitespace=False)
    letters = re.compile("[a-z]{6,12}")
    held = [as_json, StructuredSpec(kind="regex", source=letters.pattern), None]
    rows = [(user, form, t) for user in ("a", "b", None) for form in held for t in (0.0, 1.0)]

    def ask(rig: Rig, row: tuple[str | None, StructuredSpec | None, float]) -> str:
        user, form, temperature = row
        params = SamplingParams(seed=7, temperature=temperature, max_tokens=24, structured=form)
        return rig.add(PROMPT, params, adapters=() if user is None else (WeightedAdapter(AdapterRef(name=user)),))

    with rig_of(base.folder, registry.load(None, enable_lora=True), enable_prefix_caching=False, num_pages=225) as rig:
        for name, path in paths.items():
            rig.engine.load_adapter(name, path)
        ids = [ask(rig, row) for row in rows]
        answers = rig.drain()
        together = {row: answers[request_id, 0].token_ids for row, request_id in zip(rows, ids, strict=True)}
        for row in rows:
            request_id = ask(rig, row)
            assert rig.drain()[request_id, 0].token_ids == together[row], row
    for (_, form, _), token_ids in together.items():
        if form is as_json and token_ids[-1] == END_ID:
            Draft202012Validator(schema).validate(json.loads(text_of(token_ids)))
        elif form is held[1]:
            assert letters.fullmatch(text_of(token_ids))
    for form in held:  # adapters matter: each says something else
        assert len({tuple(together[user, form, 1.0]) for user in ("a", "b", None)}) == 3


def test_several_answers_each_keep_to_it(rig: Rig) -> None:
    request = rig.add(PROMPT, SamplingParams(n=4, seed=1, max_tokens=30, logprobs=2, structured=REGEX))
    answers = [answer for (owner, _), answer in rig.drain().items() if owner == request]
    assert len(answers) == 4
    assert all(re.fullmatch(REGEX.source, text_of(answer.token_ids)) for answer in answers)
    assert all(len(answer.logprobs) == len(answer.token_ids) for answer in answers)


def test_vllms_spellings_say_the_same() -> None:
    schema = {"type": "object"}
    wanted = StructuredSpec(kind="json_schema", source='{"type":"object"}')
    for params in (
        SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)),
        SamplingParams(guided_decoding=StructuredOutputsParams(json='{"type":"object"}')),
        BeamSearchParams(beam_width=2, max_tokens=3, structured_outputs=StructuredOutputsParams(json=schema)),
    ):
        assert params.structured == wanted
    options = StructuredOutputsParams(
        choice=["a"], backend="guidance", disable_any_whitespace=True, disable_additional_properties=True
    )
    assert options.structured() == StructuredSpec(
        kind="choice", source='["a"]', backend="guidance", any_whitespace=False, additional_properties=False
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"json": "{}", "regex": "a"},
        {"choice": []},
        {"regex": ""},
        {"regex": "\0"},
        {"grammar": ""},
        {"json_object": False},
    ],
)
def test_a_constraint_is_exactly_one_and_says_something(given: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="structured_outputs"):
        StructuredOutputsParams(**given).structured()  # type: ignore[arg-type]
