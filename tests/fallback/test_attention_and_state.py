"""What attention of the fallback computes beside the usual, and state that is read in two ways: logits in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire.engine.loading.load import LoadedModel, load_model
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_models.testing import ChunkSpec, run_tokens
from quire_testing.tiny import byte_tokenizer, reference_model, save

SEQS = [[1 + i * 37 % 250 for i in range(29)], [1 + i * 11 % 250 for i in range(9)]]
STEPS = [[ChunkSpec(0, 5), ChunkSpec(1, 4)], [ChunkSpec(1, 1), ChunkSpec(0, 17)]]
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}


def loaded_by_transformers(folder: Path, architecture: str, **config: Any) -> tuple[LoadedModel, Any]:
    model = reference_model(architecture, **config)
    save(model, folder)
    byte_tokenizer(folder)
    settings = ModelConfig(
        model=str(folder), model_impl="transformers", dtype="float32", device="cpu", max_model_len=80
    )
    return load_model(settings, registry.load(None)), model


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("GraniteSWAForCausalLM", {"sliding_window": 5}),
        ("Llama4ForCausalLM", {"attention_chunk_size": 8, "num_local_experts": 2}),
        ("LlamaForCausalLM", {"rope_parameters": LONG | FACTORS}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("MambaForCausalLM", {"state_size": 4}),
    ],
    ids=["sinks", "chunks", "longrope", "dynamic", "weights that a module reads itself"],
)
@torch.inference_mode()
def test_logits_in_chunks_are_those_of_transformers(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    loaded, model = loaded_by_transformers(tmp_path, architecture, **config)
    found = run_tokens(loaded.module, loaded.decoder, SEQS, STEPS)
    for mine, seq in zip(found, SEQS, strict=True):
        wanted = model(torch.tensor([seq]), use_cache=False).logits[0]
        torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=0)


MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_d_state": 16}
NEMOTRON_H = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8}


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("NemotronHForCausalLM", {**NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp"]}),
        (
            "FalconH1ForCausalLM",
            {**MAMBA2, "time_step_limit": (0.2, 0.9), "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7]},
        ),
    ],
    ids=["a smallest time step", "limits, and factors"],
)
@torch.inference_mode()
def test_time_steps_are_limited_token_by_token(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    """As in one pass of transformers, whose generation leaves the limits out."""
    loaded, model = loaded_by_transformers(tmp_path, architecture, **config)
    seq = SEQS[0]
    wanted = model(torch.tensor([seq]), use_cache=False).logits[0]
    by_token = [[ChunkSpec(0, 9)], *([ChunkSpec(0, 1)] for _ in seq[9:])]
    (found,) = run_tokens(loaded.module, loaded.decoder, [seq], by_token)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_token_by_token_gives_the_same_as_chunks(tmp_path: Path) -> None:
    loaded, _ = loaded_by_transformers(tmp_path, "Lfm2ForCausalLM", layer_types=["conv", "full_attention"])
    found = []
    for by_token in (False, True):
        for module in loaded.module.keeping:
            module.by_token = by_token
        found.append(run_tokens(loaded.module, loaded.decoder, SEQS, STEPS))
    assert loaded.module.keeping
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


def test_keys_of_long_and_short_texts_are_not_shared(tmp_path: Path) -> None:
    part = loaded_by_transformers(tmp_path, "LlamaForCausalLM", rope_parameters=LONG | FACTORS)[0].decoder
    assert part.has_kv_cache_variants
    assert part.kv_cache_variant(16) != part.kv_cache_variant(17)
