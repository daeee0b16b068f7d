"""Adapters made by peft, in one batch with the base: every row has the logits and the tokens that peft gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, rig_of
from lora_rig import Base, Ours, random_seqs

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter
from quire_adapters.lora_runtime import LoadedAdapter

TOLERANCE = 1e-4
NEW_TOKENS = 24
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM")
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["gate", "w1", "w2", "w3"]
"""By these names peft still takes the router and the experts, though they are stacked now."""


def configs(architecture: str) -> dict[str, dict[str, Any]]:
    experts = architecture == "MixtralForCausalLM"
    every = ATTENTION + (EXPERTS if experts else MLP)
    return {
        "rank 1": {"r": 1, "lora_alpha": 1, "target_modules": every},
        "rank 8": {"r": 8, "lora_alpha": 4, "target_modules": every, "use_rslora": True},
        "rank 16": {"r": 16, "use_dora": True, "target_modules": ATTENTION if experts else every},
        "rank 64": {"r": 64, "lora_alpha": 32, "target_modules": every},
        "tables": {"r": 8, "target_modules": ["embed_tokens", "lm_head", "v_proj"]},
        "head": {
            "r": 16,
            "target_modules": ["q_proj", "o_proj"],
            "modules_to_save": ["lm_head"],
            "rank_pattern": {"q_proj": 3},
            "alpha_pattern": {r"layers\.0\.self_attn\.o_proj": 5},
        },
    }


class Mixed:
    """A model, its adapters, and a batch of the base and all of them."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.base = Base(folder / architecture, architecture)
        named = configs(architecture).items()
        self.folders = {name: self.base.adapter(name, like=0.7, **config) for name, config in named}
        self.seqs = random_seqs(1 + len(self.folders))
        self.ours = Ours(self.base)
        self.adapters: Mapping[str, LoadedAdapter] = {
            name: self.ours.lora.load(name, folder) for name, folder in self.folders.items()
        }
        self.uses: list[dict[LoadedAdapter, float]] = [{}, *({adapter: 1.0} for adapter in self.adapters.values())]
        self.names = [None, *self.folders]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def mixed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return Mixed(tmp_path_factory.mktemp("lora"), request.param)


@pytest.mark.parametrize("chunk", [1000, 7])
def test_each_row_of_a_mixed_batch_has_the_logits_of_peft(mixed: Mixed, chunk: int) -> None:
    found = mixed.ours.logits(mixed.seqs, mixed.uses, chunk)
    plain = mixed.ours.logits(mixed.seqs, [{}] * len(mixed.seqs), chunk)
    for name, seq, ours, untouched in zip(mixed.names, mixed.seqs, found, plain, strict=True):
        wanted = mixed.base.oracle(mixed.folders.get(name) if name else None, [seq])[0]
        torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE, msg=lambda text, n=name: f"{n}: {text}")
        assert torch.equal(ours.argmax(-1), wanted.argmax(-1)), name
        assert name is None or (wanted - untouched).abs().max() > 1000 * TOLERANCE, f"{name} changes too little to see"


@pytest.mark.parametrize("chunk", [1000, 7])
def test_rows_of_the_base_are_to_the_last_bit_those_of_a_batch_without_adapters(mixed: Mixed, chunk: int) -> None:
    seqs = random_seqs(3, seed=1)
    mixed_rows = [seqs[0], *mixed.seqs[1:], seqs[1], seqs[2]]
    found = mixed.ours.logits(mixed_rows, [{}, *mixed.uses[1:], {}, {}], chunk)
    plain = mixed.ours.logits(mixed_rows, [{}] * len(mixed_rows), chunk)
    for i in (0, -2, -1):
        assert torch.equal(found[i], plain[i])


def test_greedy_tokens_are_those_of_peft(mixed: Mixed) -> None:
    with rig_of(mixed.base.folder, registry.load(None, enable_lora=True), max_num_batched_tokens=64) as rig:
        for name, folder in mixed.folders.items():
            rig.engine.load_adapter(name, folder)
        asked = {
            name: rig.add(seq, greedy(NEW_TOKENS, ignore_eos=True), adapters=() if name is None else (use(name),))
            for name, seq in zip(mixed.names, mixed.seqs, strict=True)
        }
        answers = rig.drain()
    for name, seq in zip(mixed.names, mixed.seqs, strict=True):
        wanted = mixed.base.greedy(mixed.folders.get(name) if name else None, seq, NEW_TOKENS)
        assert answers[asked[name], 0].token_ids == wanted, name


def use(name: str) -> WeightedAdapter:
    return WeightedAdapter(AdapterRef(name=name))
