"""Hooks that bring adapters: a kind of one's own, and where to find them."""

import json
from pathlib import Path

import pytest
import torch
from hook_rig import SAME
from plugin_site import PluginSite
from safetensors.torch import load_file, save_file

from quire import LLM, LoRARequest
from quire.errors import BadRequest
from quire.hooks.registry import load
from quire.records import AdapterSource
from quire_testing import tiny_llama


def write_ia3(folder: Path, base: Path, merged: Path) -> Path:
    """An adapter as PEFT writes it, and the base model with the adapter in its weights."""
    folder.mkdir()
    config = {
        "peft_type": "IA3",
        "target_modules": ["k_proj", "v_proj", "down_proj"],
        "feedforward_modules": ["down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors, vectors = load_file(base / "model.safetensors"), {}
    for layer in range(2):
        for module, shape in (("self_attn.k_proj", (32, 1)), ("self_attn.v_proj", (32, 1)), ("mlp.down_proj", (1, 96))):
            name = f"model.layers.{layer}.{module}"
            vectors[f"base_model.model.{name}.ia3_l"] = by = torch.randn(shape)
            tensors[f"{name}.weight"] *= by
    save_file(vectors, folder / "adapter_model.safetensors")
    save_file(tensors, merged / "model.safetensors", {"format": "pt"})
    return folder


def test_hook_adapter_runtimes_mix_adapters_in_one_batch(tour: PluginSite, model: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    prompts = ["Hello", "What is the answer?", "a"]
    wanted, requests = [], []
    for number in range(2):
        merged = tiny_llama(tmp_path / f"merged{number}")
        requests.append(LoRARequest(f"ia{number}", 0, str(write_ia3(tmp_path / f"ia{number}", model, merged))))
        with LLM(str(merged), plugins=["llama"], dtype="float32", num_pages=64) as llm:
            wanted.append(llm.generate(prompts, SAME, use_tqdm=False))
    with LLM(str(model), plugins=["llama", "tour-ia3"], max_loras=1, dtype="float32", num_pages=64) as llm:
        base = llm.generate(prompts, SAME, use_tqdm=False)
        each = [requests[0], requests[1], None] * 3
        mixed = llm.generate([prompt for prompt in prompts for _ in range(3)], SAME, lora_request=each, use_tqdm=False)
    ids = [output.outputs[0].token_ids for output in mixed]
    for i in range(3):
        found = [outputs[i].outputs[0].token_ids for outputs in (*wanted, base)]
        assert ids[3 * i : 3 * i + 3] == found
        assert len(set(map(tuple, found))) == 3


def test_hook_adapter_runtimes_refuse_what_does_not_fit(tour: PluginSite, model: Path, tmp_path: Path) -> None:
    folder = write_ia3(tmp_path / "ia", model, tiny_llama(tmp_path / "merged"))
    good = load_file(folder / "adapter_model.safetensors")
    key = "base_model.model.model.layers.0.self_attn.k_proj.ia3_l"
    with LLM(str(model), plugins=["llama", "tour-ia3"], dtype="float32", num_pages=64) as llm:
        for change, said in (
            ({key: torch.ones(33, 1)}, "33 scales for blocks.0.attn.k, which takes 32"),
            ({key.replace("0", "7"): torch.ones(32, 1)}, "blocks.7.attn.k, which this model does not have"),
        ):
            save_file(good | change, folder / "adapter_model.safetensors")
            with pytest.raises(BadRequest, match=said):
                llm.generate("x", SAME, lora_request=LoRARequest("ia", 0, str(folder)), use_tqdm=False)
        (folder / "adapter_model.safetensors").write_bytes(b"junk")
        with pytest.raises(BadRequest, match="'ia' cannot be read"):
            llm.generate("x", SAME, lora_request=LoRARequest("ia", 0, str(folder)), use_tqdm=False)


def test_hook_resolve_adapter_looks_in_a_folder_and_nowhere_above(tour: PluginSite, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    for path in (folder / "mine", tmp_path / "secret"):
        path.mkdir(parents=True)
        (path / "adapter_config.json").write_text("{}")
    registry = load(["adapter-folder"], {"adapter-folder": {"folder": str(folder)}})
    source = registry.resolve_adapter("mine", "base", tmp_path)
    assert isinstance(source, AdapterSource)
    assert source.path == folder / "mine"
    for name in ("other", "../secret", ".", "..", str(tmp_path / "secret")):
        assert registry.resolve_adapter(name, "base", tmp_path) is None
