"""The fallback's other paths: int8 matrices, an embedder, an encoder, experts one by one, and the command's setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM
from quire.engine.loading.load import LoadedModel, load_model
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_models.modules.projection import Projection, projections
from quire_models.testing import ChunkSpec, ModelDriver, run_tokens
from quire_testing.tiny import byte_tokenizer, reference_model, save, tiny_llama

SEQS = [[1 + i * 37 % 250 for i in range(29)], [1 + i * 11 % 250 for i in range(9)]]
STEPS = [[ChunkSpec(0, 5), ChunkSpec(1, 4)], [ChunkSpec(1, 1), ChunkSpec(0, 17)]]


def loaded_by_transformers(folder: Path, **settings: Any) -> LoadedModel:
    config = ModelConfig(model=str(folder), model_impl="transformers", dtype="float32", device="cpu", **settings)
    return load_model(config, registry.load(None))


def saved(folder: Path, architecture: str, **config: Any) -> Any:
    model = reference_model(architecture, **config)
    save(model, folder)
    byte_tokenizer(folder)
    return model


@torch.inference_mode()
def hidden_states(loaded: LoadedModel) -> list[Tensor]:
    driver = ModelDriver(loaded.module, loaded.decoder, SEQS)
    return driver.hidden([0, 1])


def test_int8_gives_what_the_plugin_gives_with_int8(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    settings = {"dtype": "float32", "device": "cpu", "quantization": "int8"}
    native = load_model(ModelConfig(model=str(folder), **settings), registry.load(None))
    ours = loaded_by_transformers(folder, quantization="int8")
    assert all(matrix.is_quantized for matrix, _ in projections(ours.module.body).values())
    with torch.inference_mode():
        wanted = run_tokens(native.module, native.decoder, SEQS, STEPS)
        found = run_tokens(ours.module, ours.decoder, SEQS, STEPS)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=0)


def test_every_linear_layer_is_a_projection(tmp_path: Path) -> None:
    saved(tmp_path, "PhiForCausalLM", pad_token_id=0)
    module = loaded_by_transformers(tmp_path).module
    assert not [path for path, each in module.named_modules() if isinstance(each, torch.nn.Linear)]
    assert sum(isinstance(each, Projection) for each in module.modules()) > 6


@pytest.mark.parametrize("architecture", ["Qwen3Model", "BertModel", "RobertaModel"])
def test_models_without_a_head_give_hidden_states(architecture: str, tmp_path: Path) -> None:
    model = saved(tmp_path, architecture, pad_token_id=0)
    loaded = loaded_by_transformers(tmp_path)
    assert loaded.info.tasks == ("embed", "token_embed")
    with torch.inference_mode():
        wanted = [model(torch.tensor([seq])).last_hidden_state[0] for seq in SEQS]
    for mine, theirs in zip(hidden_states(loaded), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


def test_a_classifier_scores_like_transformers(tmp_path: Path) -> None:
    model = saved(tmp_path, "LlamaForSequenceClassification", num_labels=3)
    with torch.inference_mode():
        wanted = model(torch.tensor([SEQS[1]])).logits[0].softmax(-1).tolist()
    with LLM(str(tmp_path), model_impl="transformers", dtype="float32", device="cpu", num_pages=64) as llm:
        [answer] = llm.classify([{"prompt_token_ids": SEQS[1]}])
    assert answer.outputs.probs == pytest.approx(wanted, abs=1e-4)


def test_experts_that_a_checkpoint_has_one_by_one_are_converted(tmp_path: Path) -> None:
    model = saved(tmp_path, "MixtralForCausalLM", num_local_experts=4)
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert any("experts.3.w1" in name for name in file.keys())  # noqa: SIM118
    loaded = loaded_by_transformers(tmp_path)
    with torch.inference_mode():
        found = run_tokens(loaded.module, loaded.decoder, SEQS, STEPS)
        wanted = [model(torch.tensor([seq])).logits[0] for seq in SEQS]
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
