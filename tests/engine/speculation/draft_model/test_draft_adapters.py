"""Adapters of a draft model: drafts are the tokens of the draft model with the adapter, as peft computes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from draft_model_rig import draft_model_rig
from engine_rig import greedy, rig_of
from lora_rig import Base, random_seqs

from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.errors import ConfigError, NotFound
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import DraftQuery
from quire.types import AdapterRef, WeightedAdapter

ARCHITECTURE = "LlamaForCausalLM"
NUM_DRAFTS = 4


@dataclass(frozen=True)
class Pair:
    """A draft model, which is also the served one, and its adapters."""

    base: Base
    first: Path
    second: Path

    def drafts_of_peft(self, adapter: Path | None, tokens: list[int]) -> list[int]:
        return self.base.greedy(adapter, tokens, NUM_DRAFTS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    base = Base(tmp_path_factory.mktemp("draft") / "model", ARCHITECTURE)
    first = base.adapter("first", like=0.7, r=4, target_modules=["q_proj", "v_proj", "up_proj"])
    second = base.adapter("second", like=0.7, r=8, target_modules=["o_proj", "down_proj", "lm_head"])
    return Pair(base, first, second)


def rig(pair: Pair, lora: Any, **settings: Any) -> Any:
    found = registry.load(None, enable_lora=True)
    config = {"num_speculative_tokens": NUM_DRAFTS, "lora": lora}
    return draft_model_rig(
        pair.base.folder, pair.base.folder, config, found=found, **{"max_num_batched_tokens": 64, **settings}
    )


def query(seq_id: int, tokens: list[int], prompt_len: int, **fields: Any) -> DraftQuery:
    params = greedy(speculative_lora=fields.pop("speculative_lora", None))
    return DraftQuery(seq_id, tokens, prompt_len, NUM_DRAFTS, params, seed=1, **fields)


def proposed(drafter: ModelDrafter, *queries: DraftQuery) -> list[list[int]]:
    return [list(draft.token_ids) for draft in drafter.propose(queries)]


def test_one_adapter_drafts_for_all(pair: Pair) -> None:
    seqs = random_seqs(3)
    with rig(pair, str(pair.first)) as (_, drafter):
        found = proposed(drafter, *(query(i, seq, len(seq)) for i, seq in enumerate(seqs)))
        wanted = [pair.drafts_of_peft(pair.first, seq) for seq in seqs]
        assert found == wanted
        assert found != [pair.drafts_of_peft(None, seq) for seq in seqs]
        grown = [*seqs[0], *wanted[0][:2], 7]  # two drafts are accepted
        assert proposed(drafter, query(0, grown, len(seqs[0]))) == [pair.drafts_of_peft(pair.first, grown)]


def test_a_batch_has_the_adapter_of_each_request(pair: Pair) -> None:
    a, b, c, d, e = random_seqs(5, seed=2)
    with rig(pair, {"first": str(pair.first), "second": str(pair.second)}) as (_, drafter):
        found = proposed(
            drafter,
            query(1, a, len(a), speculative_lora="first"),
            query(2, b, len(b)),
            query(3, c, len(c), adapters=("second",)),
            query(4, d, len(d), adapters=("second",), speculative_lora="first"),
            query(5, e, len(e), adapters=("other",)),
        )
        used = [(pair.first, a), (None, b), (pair.second, c), (pair.first, d), (None, e)]
        assert found == [pair.drafts_of_peft(adapter, seq) for adapter, seq in used]
        drafter.end([1, 2, 3, 4, 5])
        assert not drafter._adapters.slots
        assert proposed(drafter, query(1, a, len(a))) == [pair.drafts_of_peft(None, a)]  # the id comes back without


def test_drafts_of_the_same_adapter_are_accepted_and_change_no_answer(pair: Pair) -> None:
    seqs = random_seqs(3, seed=3)
    uses = (WeightedAdapter(AdapterRef(name="first")),)
    params = [
        greedy(17, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=4, max_tokens=17, ignore_eos=True),
        greedy(17, ignore_eos=True, speculative_lora="first"),
    ]
    adapters = [uses, uses, ()]
    tokens = []
    for drafted in (False, True):
        made = (
            rig(pair, {"first": str(pair.first)})
            if drafted
            else rig_of(pair.base.folder, registry.load(None, enable_lora=True), max_num_batched_tokens=64)
        )
        with made as found:
            engines = found[0] if drafted else found
            engines.engine.load_adapter("first", pair.first)
            each = [param if drafted else replace(param, speculative_lora=None) for param in params]
            asked = [engines.add(seq, p, adapters=use) for seq, p, use in zip(seqs, each, adapters, strict=True)]
            answers = engines.drain()
            tokens.append([answers[request_id, 0].token_ids for request_id in asked])
            steps = engines.engine.stats().num_steps_total
    assert tokens[0] == tokens[1]
    assert steps < 1 + 17


def test_a_request_that_names_an_unknown_adapter_is_refused(pair: Pair) -> None:
    params = greedy(4, speculative_lora="third")
    with rig(pair, {"first": str(pair.first)}) as (engines, _):
        with pytest.raises(NotFound, match=r"The drafter has no adapter `third`. Its adapters: first") as raised:
            engines.add([5, 6, 7], params)
        assert raised.value.param == "speculative_lora"
        assert not engines.engine.has_work
    with rig_of(pair.base.folder) as plain, pytest.raises(NotFound, match="Its adapters: none"):
        plain.add([5, 6, 7], params)


def refusal(pair: Pair, lora: Any, enable_lora: bool = True, **speculative: Any) -> str:
    config = {"method": "draft_model", "model": str(pair.base.folder), "lora": lora, **speculative}
    found = registry.load(None, enable_lora=enable_lora)
    with pytest.raises(ConfigError) as raised, rig_of(pair.base.folder, found, speculative_config=config):
        pass
    return raised.value.message


@pytest.mark.parametrize(
    ("lora", "part"),
    [
        (3, "must be the folder of an adapter, or an object of at most 64"),
        ("", "must be the folder of an adapter"),
        ({}, "must be the folder of an adapter"),
        ({"a": 3}, "must be the folder of an adapter"),
        ({str(i): "x" for i in range(65)}, "must be the folder of an adapter"),
        ({"a" * 129: "x"}, "a name may have at most 128 characters"),
        ('{"a": ', "is not JSON"),
        ("/no/such/folder", "the adapter '/no/such/folder' cannot be used: it is no folder of an adapter"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(pair: Pair, lora: Any, part: str) -> None:
    assert part in refusal(pair, lora)


def test_an_adapter_that_does_not_fit_is_refused(pair: Pair, tmp_path: Path) -> None:
    other = Base(tmp_path / "other", "GPT2LMHeadModel").adapter("a", r=2, target_modules=["c_attn"])
    assert "cannot be used" in refusal(pair, str(other))


def test_it_needs_an_adapter_runtime(pair: Pair) -> None:
    assert "add --enable-lora" in refusal(pair, str(pair.first), enable_lora=False)


@pytest.mark.parametrize("method", ["medusa", "eagle", "mtp", "ngram"])
def test_other_methods_say_that_they_take_none(pair: Pair, method: str) -> None:
    message = refusal(pair, str(pair.first), method=method)
    assert f"the method {method} takes no adapter. Only a draft model has layers" in message


def test_the_flag_takes_an_object_as_text(pair: Pair) -> None:
    with rig(pair, f'{{"first": "{pair.first}"}}') as (_, drafter):
        assert drafter.adapter_names == {"first"}
        assert drafter.memory_bytes > 0
