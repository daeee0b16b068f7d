"""Quantized models with everything else: whatever runs beside a request, in whatever way, its answer is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from composition.asking import PLAIN, Rigs, ask, rigs_of, same
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Answer, Rig
from lora_rig import Base

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter

PROMPT = list(b"The quick brown fox jumps over")

QUANTIZED = Setting(
    "weights and cache of 4 bits", {"quantization": "int4-asym", "activation_bits": 16, "kv_cache_dtype": "int4"}
)

ROUNDED = Setting("inputs and cache of 8 bits", {"quantization": "int4", "kv_cache_dtype": "int8"})
"""Other sums may round to other bytes, so answers are checked by themselves."""


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """Engines with two adapters by their settings, made when first needed."""
    root = tmp_path_factory.mktemp("quantized")
    base = Base(root / "llama", "LlamaForCausalLM", head_dim=32, intermediate_size=128)
    adapters = {name: base.adapter(name, r=4, target_modules="all-linear") for name in ("one", "two")}

    def prepare(rig: Rig) -> None:
        for name, folder in adapters.items():
            rig.engine.load_adapter(name, folder)

    with rigs_of(Path(base.folder), registry.load(None, enable_lora=True), prepare) as made:
        yield made


@pytest.fixture(scope="module")
def plain(rigs: Rigs) -> dict[str, list[Answer]]:
    """What each feature gives in the plainest engine, alone."""
    rig = rigs({**PLAIN.settings, **QUANTIZED.settings})
    return {feature.name: ask(rig, PROMPT, (feature,), ()) for feature in ASKED}


def adapted(*names: str) -> dict[str, Any]:
    return {"adapters": tuple(WeightedAdapter(AdapterRef(name=name)) for name in names)}


ASKED = (
    *(feature for feature in FEATURES if feature.name in ("greedy", "seed", "schema")),
    Feature("adapter", {}, lambda answers: None, request=adapted("one")),
    Feature("two adapters", {}, lambda answers: None, request=adapted("one", "two")),
)


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_no_way_of_running_changes_an_answer_of_a_quantized_model(
    rigs: Rigs, plain: dict[str, list[Answer]], way: Setting
) -> None:
    rig = rigs({**way.settings, **QUANTIZED.settings})
    for feature in ASKED:
        assert same(ask(rig, PROMPT, (feature,), (way,)), plain[feature.name]), feature.name


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_features_hold_where_inputs_and_the_cache_are_rounded(rigs: Rigs, way: Setting) -> None:
    for feature in ASKED:
        feature.check(ask(rigs({**way.settings, **ROUNDED.settings}), PROMPT, (feature,), (way,)))
