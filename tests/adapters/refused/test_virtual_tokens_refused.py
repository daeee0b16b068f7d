"""Adapters with virtual tokens that are refused, and requests that cannot use one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from safetensors.torch import load_file, save_file
from virtual_tokens_rig import FOUND, World, answer, using

from quire.engine.adapters.revision import AdapterRevision
from quire.engine.adapters.virtual_tokens import check_virtual_tokens
from quire.engine.loading.load import load_model
from quire.errors import BadRequest, Overloaded
from quire.records import AdapterMetadata, Context
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Prompt
from quire_adapters.peft.virtual_tokens import KINDS
from quire_adapters.prompt_tuning_runtime import PromptTuningRuntime
from quire_testing.tiny import tiny_model

Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), "LlamaForCausalLM", ("prompt", "prefix", "projected"))


@pytest.fixture(scope="module")
def rig(world: World) -> Iterator[Rig]:
    with rig_of(world.folder, FOUND, max_model_len=40, page_size=4, num_pages=12) as made:
        world.load(made)
        yield made


def runtime_of(folder: Path, **settings: Any) -> PromptTuningRuntime:
    config = ModelConfig(model=str(folder), dtype="float32", device="cpu", **settings)
    loaded = load_model(config, FOUND)
    runtime = PromptTuningRuntime(Context(names=loaded.names, max_slots=2, device="cpu"))
    runtime.attach(loaded.module)  # type: ignore[arg-type]
    return runtime


@pytest.fixture(scope="module")
def runtime(world: World) -> PromptTuningRuntime:
    return runtime_of(world.folder)


def config(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return spoil


def number(value: float) -> Spoil:
    def change(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found["prompt_embeddings"][1, 2] = value
        return found

    return tensors(change)


ONE = "prompt_embeddings"
SPOILED: dict[str, tuple[str, Spoil, str]] = {
    "no number": ("prompt", config(num_virtual_tokens=None), "`num_virtual_tokens` must be a whole number from 1 to"),
    "too many": ("prompt", config(num_virtual_tokens=1 << 40), "`num_virtual_tokens` must be a whole number from 1 to"),
    "a flag": ("prompt", config(num_virtual_tokens=True), "`num_virtual_tokens` must be a whole number from 1 to"),
    "another number": ("prompt", config(num_virtual_tokens=7), "has shape [6, 64]; for this model it must be [7, 64]"),
    "two parts": ("prompt", config(num_transformer_submodules=2), "virtual tokens of encoder-decoders"),
    "other layers": ("prefix", config(num_layers=3), "`num_layers` is 3; for keys and values of this model it is 2"),
    "other heads": ("prefix", config(num_attention_heads=[4]), "`num_attention_heads` is [4]"),
    "rows as keys": (
        "prompt",
        config(peft_type="PREFIX_TUNING", num_attention_heads=2),
        "it must be [6, 128] (keys and values of 2 layers)",
    ),
    "a classifier": (
        "prompt",
        tensors(lambda found: {**found, "base_model.score.weight": torch.ones(2, 64)}),
        "`base_model.score.weight` cannot be used",
    ),
    "no tensor": ("prompt", tensors(lambda found: {}), "has no tensor `prompt_embeddings`"),
    "one dimension": ("prefix", tensors(lambda found: {ONE: found[ONE].flatten()}), "has shape [768]"),
    "NaN": ("prefix", number(float("nan")), "numbers that are not finite"),
    "infinite": ("prompt", number(float("inf")), "numbers that are not finite"),
    "truncated": (
        "prefix",
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\0" * 20) and None,
        "adapter_model.safetensors cannot be used",
    ),
    "larger than it may be": (
        "prompt",
        tensors(lambda found: {ONE: torch.ones(6, 64 << 12)}),
        "an adapter of this model has at most",
    ),
    "no object": ("prompt", lambda folder: (folder / "adapter_config.json").write_text("[]") and None, "a JSON object"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_folder_that_is_wrong_is_refused_in_a_sentence(
    world: World, runtime: PromptTuningRuntime, what: str, tmp_path: Path
) -> None:
    kind, spoil, said = SPOILED[what]
    for file in world.paths[kind].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    spoil(tmp_path)
    with pytest.raises(BadRequest) as found:
        runtime.load("x", tmp_path)
    assert said in found.value.message
    assert str(tmp_path) not in found.value.message


@pytest.mark.parametrize(
    ("architecture", "settings", "kind", "said"),
    [
        ("Qwen3NextForCausalLM", {"num_experts": 0}, "PREFIX_TUNING", "some of its layers keep a state"),
        ("DeepseekV3ForCausalLM", {}, "PREFIX_TUNING", "keys and values of one shape"),
        ("BertModel", {}, "PREFIX_TUNING", "it stores no keys and values"),
        ("BartForConditionalGeneration", {}, "PROMPT_TUNING", "its decoder is not the only reader of a prompt"),
        ("BartForConditionalGeneration", {}, "PREFIX_TUNING", "its decoder is not the only reader of a prompt"),
    ],
)
def test_a_model_that_cannot_compute_them_says_why(
    architecture: str, settings: dict[str, Any], kind: str, said: str, tmp_path: Path
) -> None:
    runtime = runtime_of(tiny_model(tmp_path / "model", architecture, **settings))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "num_virtual_tokens": 3}))
    with pytest.raises(BadRequest, match=f"This model does not support adapters of .*, because .*{said}"):
        runtime.load("x", tmp_path)
    assert kind in KINDS


# --- requests ----------------------------------------------------------------------------------------


def test_a_prompt_that_no_longer_fits_is_refused(rig: Rig) -> None:
    with pytest.raises(BadRequest) as found:
        rig.add([1] * 35, greedy(4), adapters=using("prompt"))
    assert found.value.message == (
        "The prompt has 35 tokens, and its adapter puts 6 before it; with the output at most 40 fit this model."
    )
    for kind, count in (("prompt", 6), ("projected", 9)):
        (fits,) = answer(rig, kind, [1] * (39 - count), greedy(None, ignore_eos=True))
        assert (fits.last.finish_reason, len(fits.token_ids)) == ("length", 1)
        (cut,) = answer(rig, kind, [1] * 8, greedy(32, ignore_eos=True))
        assert (cut.last.finish_reason, len(cut.token_ids)) == ("length", 32 - count), "the context is full"


def test_one_adapter_with_its_full_weight_puts_tokens_before_a_prompt(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="one adapter that puts tokens before the prompt, not `prefix`, `prompt`"):
        rig.add([1, 2], adapters=(*using("prompt"), *using("prefix")))
    with pytest.raises(BadRequest, match=r"`prompt` puts tokens before the prompt, so its weight must be 1, not 0\.5"):
        rig.add([1, 2], adapters=using("prompt", 0.5))
    assert not rig.engine.has_work


def test_a_request_that_came_before_the_adapter_was_read_is_to_be_sent_again() -> None:
    about = AdapterMetadata(num_bytes=1, virtual_tokens=4)
    adapter = AdapterRevision(AdapterRef(name="a"), Path("a"), metadata=about)
    with pytest.raises(Overloaded, match="`a` was still being loaded when the request came"):
        check_virtual_tokens(Prompt(token_ids=(1,)), adapter)
    check_virtual_tokens(Prompt(token_ids=(1,)).with_virtual(4, False), adapter)


def test_after_a_restart_the_tokens_are_known_before_the_adapter_is_read_again(world: World, rig: Rig) -> None:
    infos = rig.engine.adapters.infos()
    with rig_of(world.folder, FOUND) as other:
        for info in infos:
            other.engine.adapters.restore(info)
        for kind in ("prompt", "prefix"):
            (found,) = answer(other, kind, [5, 6, 7])
            world.check_greedy(kind, [5, 6, 7], found.token_ids)
    assert [(info.virtual_tokens, info.has_virtual_kv) for info in infos] == [(6, False), (6, True), (9, True)]
