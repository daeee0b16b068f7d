"""IA³ adapters, with peft as the oracle: a mixed batch against one model of transformers for each adapter."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import related_prompts
from ia3_rig import CASES, World
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.engine.loading.load import load_model
from quire.errors import BadRequest
from quire.hooks import registry
from quire.records import Context
from quire.settings.model_config import ModelConfig
from quire.types import Chunk, Plan
from quire_adapters.ia3_runtime import Ia3Runtime
from quire_models.testing import ChunkSpec, ModelDriver

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it

SEQS = related_prompts(5, seed=3)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("llama"), CASES["llama"])


class Bench:
    """Our model with the runtime attached, and no engine."""

    def __init__(self, folder: Path, max_slots: int = 3) -> None:
        self.loaded = load_model(ModelConfig(model=str(folder), dtype="float32", device="cpu"), registry.load(None))
        self.runtime = Ia3Runtime(Context(names=self.loaded.names, max_slots=max_slots, device="cpu"))
        self.runtime.attach(self.loaded.module)

    def logits(self, seqs: Sequence[Sequence[int]], uses: Sequence[Sequence[tuple[int, float]]] | None) -> list[Tensor]:
        """Of every position of each seq, computed in one step."""
        module: Any = self.loaded.module
        driver = ModelDriver(module, self.loaded.decoder, seqs)
        fwd = driver.forward([ChunkSpec(i, len(seq)) for i, seq in enumerate(seqs)])
        if uses is not None:
            plan = Plan(chunks=tuple(Chunk(i, 0, seq, (), False) for i, seq in enumerate(seqs)))
            fwd.adapters = self.runtime.bind_step(plan, uses)
            assert self.runtime.bind_logits(uses) is None
        with torch.inference_mode():
            return list(module.logits(module(fwd)).split([len(seq) for seq in seqs]))


# --- what is computed --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_a_mixed_batch_has_the_logits_of_peft(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, CASES[name])
    bench = Bench(world.folder)
    slots = {key: bench.runtime.acquire_slot(bench.runtime.load(key, path)) for key, path in world.paths.items()}
    users = ("a", None, "b", "c", None)
    uses = [() if user is None else ((slots[user], 1.0),) for user in users]
    found = bench.logits(SEQS, uses)
    base = bench.logits(SEQS, None)
    for user, seq, logits, plain in zip(users, SEQS, found, base, strict=True):
        expected = world.logits(user, seq)
        assert (logits - expected).abs().max() <= 1e-4, user
        assert torch.equal(logits, plain) == (user is None)
    assert (world.logits("a", SEQS[0]) - world.logits(None, SEQS[0])).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama", "llama_inputs"])
def test_several_on_one_request_multiply(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, CASES[name])
    both = world.models["a"]
    both.load_adapter(world.paths["b"], adapter_name="b")
    both.base_model.set_adapter(["default", "b"])
    bench = Bench(world.folder)
    a, b = (bench.runtime.acquire_slot(bench.runtime.load(key, world.paths[key])) for key in "ab")
    found, other = bench.logits(SEQS[:2], [((a, 1.0), (b, 1.0)), ((b, 1.0),)])
    assert (found - world.logits("a", SEQS[0])).abs().max() <= 1e-4
    assert (other - world.logits("b", SEQS[1])).abs().max() <= 1e-4


def test_a_weight_moves_factors_towards_one(world: World, tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "adapter_config.json").write_text((world.paths["a"] / "adapter_config.json").read_text())
    vectors = load_file(world.paths["a"] / "adapter_model.safetensors")
    save_file({key: 0.5 + 0.5 * vector for key, vector in vectors.items()}, half / "adapter_model.safetensors")
    bench = Bench(world.folder)
    a, b = (bench.runtime.acquire_slot(bench.runtime.load("x", path)) for path in (world.paths["a"], half))
    found, expected, nothing, base = bench.logits([SEQS[0]] * 4, [((a, 0.5),), ((b, 1.0),), ((a, 0.0),), ()])
    assert (found - expected).abs().max() <= 1e-4
    assert (nothing - base).abs().max() <= 1e-5


# --- slots -------------------------------------------------------------------------------------------


def test_slots_are_kept_while_used_and_the_least_recently_released_is_evicted(world: World) -> None:
    bench = Bench(world.folder, max_slots=2)
    runtime = bench.runtime
    a, b, c = (runtime.load(name, path) for name, path in world.paths.items())
    assert [runtime.acquire_slot(a), runtime.acquire_slot(b), runtime.acquire_slot(c)] == [0, 1, None]
    runtime.release_slot(b)
    assert runtime.acquire_slot(b) == 1, "it was still there"
    runtime.release_slot(b)
    runtime.release_slot(a)
    assert runtime.acquire_slot(c) == 1
    found = bench.logits([SEQS[0]], [((1, 1.0),)])[0]
    assert (found - world.logits("c", SEQS[0])).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["llama", "llama_inputs"])
def test_what_was_released_changes_nothing_any_more(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, CASES[name])
    bench = Bench(world.folder, max_slots=1)
    adapter = bench.runtime.load("a", world.paths["a"])
    slot = bench.runtime.acquire_slot(adapter)
    assert slot is not None
    bench.runtime.release_slot(adapter)
    bench.runtime.release(adapter)
    memory = weakref.ref(adapter)
    del adapter
    assert memory() is None, "nothing holds it, though no step has come since"
    found, base = bench.logits([SEQS[0]], [((slot, 1.0),)]), bench.logits([SEQS[0]], None)
    assert torch.equal(found[0], base[0])
    assert bench.runtime.acquire_slot(bench.runtime.load("b", world.paths["b"])) == slot


def test_the_description_of_an_adapter(world: World) -> None:
    facts = Bench(world.folder).runtime.describe(Bench(world.folder).runtime.load("a", world.paths["a"]))
    assert (facts.rank, set(facts.targets)) == (0, {"k_proj", "v_proj", "down_proj"})
    assert facts.num_bytes == 4 * 2 * (32 + 32 + 96)


# --- what is refused ---------------------------------------------------------------------------------

K = "base_model.model.model.layers.0.self_attn.k_proj"
REFUSED: dict[str, tuple[Mapping[str, Tensor], str]] = {
    "nothing": ({}, "has no vectors"),
    "another kind": ({f"{K}.lora_A.weight": torch.ones(8, 64)}, "is not an IA³ vector"),
    "a saved module": ({"base_model.model.lm_head.weight": torch.ones(264, 64)}, "is not an IA³ vector"),
    "an unknown layer": ({f"{K.replace('layers.0', 'layers.7')}.ia3_l": torch.ones(32, 1)}, "this model has no matrix"),
    "the head": (
        {"base_model.model.lm_head.ia3_l": torch.ones(264, 1)},
        "`lm_head`, which is not a matrix of the model's b",
    ),
    "another width": ({f"{K}.ia3_l": torch.ones(48, 1)}, r"has shape \[48, 1\]; it must be \[1, 64\] or \[32, 1\]"),
    "what is no number": ({f"{K}.ia3_l": torch.full((32, 1), torch.nan)}, "not finite"),
    "a matrix": ({f"{K}.ia3_l": torch.ones(32, 2)}, r"has shape \[32, 2\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_with_the_reason(case: str, world: World, tmp_path: Path) -> None:
    tensors, reason = REFUSED[case]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    save_file(dict(tensors), tmp_path / "adapter_model.safetensors")
    with pytest.raises(BadRequest, match=reason):
        Bench(world.folder).runtime.load("x", tmp_path)
