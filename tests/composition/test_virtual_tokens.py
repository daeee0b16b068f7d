"""What a request may ask for works with an adapter that puts tokens before the prompt, in any way of running."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from composition.asking import PLAIN, Rigs, beams, check_in_ways, rigs_of, same, some_text
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Rig
from safetensors.torch import save_file

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import tiny_llama

PROMPT = list(b"The quick brown fox jumps over")
USES = {name: {"adapters": (WeightedAdapter(AdapterRef(name=name)),)} for name in ("rows", "keys")}


def write(folder: Path, kind: str, width: int) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "num_virtual_tokens": 6}))
    rows = torch.randn(6, width, generator=torch.Generator().manual_seed(width))
    save_file({"prompt_embeddings": rows}, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """Engines by their settings, made when first needed."""
    root = tmp_path_factory.mktemp("virtual")
    paths = {"rows": write(root / "rows", "PROMPT_TUNING", 64), "keys": write(root / "keys", "PREFIX_TUNING", 128)}

    def load(rig: Rig) -> None:
        for name, path in paths.items():
            rig.engine.load_adapter(name, path)

    with rigs_of(tiny_llama(root / "tiny", seed=3), registry.load(None, enable_lora=True), load) as made:
        yield made


def beside(rng: Any, number: int) -> tuple[Any, Mapping[str, Any]]:
    """Another prompt, of the base or with an adapter."""
    return some_text(rng, number)[0], ({}, USES["rows"], USES["keys"])[number % 3]


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_features_hold_in_every_way_of_running(rigs: Rigs, way: Setting) -> None:
    number = SETTINGS.index(way)
    for feature in FEATURES[number % 4 :: 4]:  # each in every fourth way
        name = ("rows", "keys")[(FEATURES.index(feature) // 4 + number // 4) % 2]
        adapted: Feature = replace(feature, request={**feature.request, **USES[name]})
        check_in_ways(rigs, PROMPT, adapted, (way,), beside)


@pytest.mark.parametrize("way", SETTINGS[::2], ids=[way.name for way in SETTINGS[::2]])
def test_beam_search_gives_the_same_in_every_other_way_of_running(rigs: Rigs, way: Setting) -> None:
    for request in USES.values():
        plain = beams(rigs(PLAIN.settings), PROMPT, PLAIN, **request)
        assert len(plain) == 3
        assert same(beams(rigs(way.settings), PROMPT, way, beside, **request), plain)
