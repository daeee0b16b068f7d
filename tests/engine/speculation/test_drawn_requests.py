"""Requests that hypothesis draws get the same tokens without and with each bundled drafter, in small pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from engine_rig import Answer, Rig, make_rig, related_prompts
from every_drafter import METHODS, Helped, drafter_case, num_kept, with_help
from hypothesis import HealthCheck, given, settings, strategies as st

from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.types import AdapterRef, WeightedAdapter

PROMPTS = [*related_prompts(8, seed=9), list(b"abcabcabcab"), [7] * 9, list(b"xyxyxyx")]
SMALL = {"num_pages": 8, "max_num_seqs": 8, "max_model_len": 80, "max_num_batched_tokens": 24}
GRAMMARS = [
    StructuredSpec(kind="regex", source="[a-e]{3,20}"),
    StructuredSpec(kind="regex", source="(ab|ba){2,6}!"),
    StructuredSpec(kind="choice", source='["a sure thing", "a sure bet", "no"]'),
    StructuredSpec(kind="json_schema", source='{"type": "object", "properties": {"a": {"type": "boolean"}}}'),
]

TEMPERATURES = st.one_of(st.just(0.0), st.floats(0.7, 1.5))
REQUESTS = st.fixed_dictionaries(
    {"temperature": TEMPERATURES, "seed": st.integers(0, 1 << 40), "max_tokens": st.integers(1, 22)},
    optional={
        "top_p": st.floats(0.5, 1.0),
        "top_k": st.integers(1, 60),
        "min_p": st.floats(0.0, 0.2),
        "presence_penalty": st.floats(-1.0, 1.5),
        "frequency_penalty": st.floats(-0.5, 1.0),
        "repetition_penalty": st.floats(0.8, 1.4),
        "logit_bias": st.dictionaries(st.integers(0, 255), st.floats(-5.0, 5.0), max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 255), max_size=40),
        "bad_word_ids": st.just(((65,), (66, 67))),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 3),
        "prompt_logprobs": st.just(1),
        "structured": st.sampled_from(GRAMMARS),
    },
)
ASKED = st.tuples(
    st.sampled_from(PROMPTS), REQUESTS, st.sampled_from([1, 1, 1, 2]), st.integers(0, 6), st.sampled_from([0, 0, 1])
)


@dataclass
class Engines:
    """One without drafts; one with a drafter, and one with it whose drafts are made right often."""

    plain: Rig
    drafting: tuple[Rig, Rig]
    helped: Helped
    adapters: tuple[WeightedAdapter, ...]


@pytest.fixture(scope="module", params=METHODS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    case = drafter_case(request.param, tmp_path_factory.mktemp("drawn"))
    found, helped = registry.load(None, enable_lora=True), Helped()
    drafting: dict[str, Any] = {"speculative_config": dict(case.config)}
    swapping = {"preemption": "swap", "swap_space": 0.01}
    rigs = [
        make_rig(case.folder, found, **SMALL),
        make_rig(case.folder, found, **SMALL, **drafting),
        make_rig(case.folder, with_help(found, case.method, helped), **SMALL, **drafting, **swapping),
    ]
    revisions = {rig.engine.load_adapter("a", case.adapter).revision for rig in rigs}
    use = (WeightedAdapter(AdapterRef(name="a", revision=revisions.pop())),)
    assert not revisions
    yield Engines(rigs[0], (rigs[1], rigs[2]), helped, use)
    for rig in rigs:
        rig.engine.close()


def answered(rig: Rig, asked: list[Any], adapters: tuple[WeightedAdapter, ...]) -> list[list[Answer]]:
    ids, counts = [], [n if params["temperature"] else 1 for _, params, n, _, _ in asked]
    for (prompt, params, _, min_tokens, adapted), n in zip(asked, counts, strict=True):
        whole = SamplingParams(**params, n=n, min_tokens=min(min_tokens, params["max_tokens"]))
        ids.append(rig.add(prompt, whole, adapters=adapters if adapted else ()))
    answers = rig.drain()
    return [[answers[each, index] for index in range(n)] for each, n in zip(ids, counts, strict=True)]


def check_same(found: list[list[Answer]], expected: list[list[Answer]]) -> None:
    for every, others in zip(found, expected, strict=True):
        for one, other in zip(every, others, strict=True):
            assert one.token_ids == other.token_ids
            assert (one.last.finish_reason, one.last.stop_reason) == (other.last.finish_reason, other.last.stop_reason)
            known = [(each.token_id, pytest.approx(each.logprob, abs=1e-3)) for each in other.logprobs]
            assert [(each.token_id, each.logprob) for each in one.logprobs] == known


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(asked=st.lists(ASKED, min_size=1, max_size=7))
def test_tokens_are_the_same_with_speculation_off_and_on(engines: Engines, asked: list[Any]) -> None:
    expected = answered(engines.plain, asked, engines.adapters)
    engines.helped.outputs = {}
    for (prompt, *_), every in zip(asked, expected, strict=True):
        engines.helped.outputs.setdefault(tuple(prompt), []).extend(answer.token_ids for answer in every)
    for rig in engines.drafting:
        check_same(answered(rig, asked, engines.adapters), expected)


def test_the_drawn_requests_reached_everything(engines: Engines) -> None:
    own, helped = (rig.engine.stats() for rig in engines.drafting)
    for stats in (own, helped):
        assert stats.num_cached_tokens_total > 100
        assert stats.speculation is not None
        assert stats.speculation.num_draft_tokens_total > 100
    assert own.num_preemptions_recompute_total > 0
    assert helped.num_preemptions_swap_total > 0
    assert helped.speculation is not None
    assert 100 < helped.speculation.num_accepted_tokens_total < helped.speculation.num_draft_tokens_total - 30
    assert engines.helped.num_own > 100
    for rig in engines.drafting:
        rig.engine.step()
        assert rig.engine.stats().num_pages_used == 0
        assert num_kept(rig.engine._speculation._drafter.built) == 0  # type: ignore[union-attr]
