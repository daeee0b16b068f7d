"""In bfloat16 no way of running changes an answer of batch invariant engines, although other sums round otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from composition.asking import PLAIN, Rigs, ask, rigs_of, same
from composition.features import FEATURES, SETTINGS, Setting
from engine_rig import Answer, greedy, rig_of
from lora_rig import Base

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import tiny_llama

PROMPT = list(b"The quick brown fox jumps over")

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bfloat16": {},
    "inputs and cache of 8 bits": {"quantization": "int4", "kv_cache_dtype": "int8"},
}

OTHER_SUMS = ("pages of 4", "two ranks")
"""Other kernels compute attention to such pages, and ranks add up parts of sums."""

WAYS = [way for way in SETTINGS if way.name not in OTHER_SUMS]


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def rigs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """Batch invariant engines by their other settings, made when first needed."""
    folder = tiny_llama(tmp_path_factory.mktemp("bfloat16") / "tiny", seed=3)
    always = {"dtype": "bfloat16", "batch_invariant": True, **request.param}
    with rigs_of(folder, registry.load(None)) as made:
        yield lambda settings: made({**always, **settings})


@pytest.fixture(scope="module")
def plain(rigs: Rigs) -> dict[str, list[Answer]]:
    """What each feature gives in the plainest engine, alone."""
    return {feature.name: ask(rigs(PLAIN.settings), PROMPT, (feature,), ()) for feature in FEATURES}


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_no_way_of_running_changes_an_answer(rigs: Rigs, plain: dict[str, list[Answer]], way: Setting) -> None:
    for feature in FEATURES:
        assert same(ask(rigs(way.settings), PROMPT, (feature,), (way,)), plain[feature.name]), feature.name


def test_another_rounding_is_seen(rigs: Rigs, plain: dict[str, list[Answer]]) -> None:
    (way,) = (way for way in SETTINGS if way.name == "two ranks")
    changed = [ask(rigs(way.settings), PROMPT, (feature,), (way,)) for feature in FEATURES]
    assert not all(same(found, plain[feature.name]) for found, feature in zip(changed, FEATURES, strict=True))


def test_adapters_that_other_requests_used_before_change_no_logprob(tmp_path: Path) -> None:
    base = Base(tmp_path / "llama", "LlamaForCausalLM")
    folders = {name: base.adapter(name, r=4, target_modules="all-linear") for name in ("one", "two")}
    found = []
    for first in folders:
        settings = {"dtype": "bfloat16", "batch_invariant": True}
        with rig_of(base.folder, registry.load(None, enable_lora=True), **settings) as rig:
            for name, folder in folders.items():
                rig.engine.load_adapter(name, folder)
            for names in ((first,), tuple(folders)):  # the first adapter used gets the first slot
                params = greedy(8, ignore_eos=True, logprobs=0)
                rig.add(PROMPT, params, adapters=tuple(WeightedAdapter(AdapterRef(name=name)) for name in names))
                (answer,) = rig.drain().values()
            found.append([(entry.token_id, entry.logprob) for entry in answer.logprobs])
    assert found[0] == found[1]
