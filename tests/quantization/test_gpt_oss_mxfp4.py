"""A GPT-OSS checkpoint in MXFP4 gives the logits of the same checkpoint with its experts dequantized."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from quantized_tensors import mxfp4_stored
from safetensors.torch import load_file, save_file

from quire.engine.loading.load import load_model
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_models.testing import ChunkSpec, run_tokens
from quire_testing.tiny import byte_tokenizer, reference_model, save

EXPERTS, WIDTH, INNER = 4, 64, 32
SEQS = [[1 + i * 37 % 250 for i in range(29)], [1 + i * 11 % 250 for i in range(9)]]
STEPS = [[ChunkSpec(0, 5), ChunkSpec(1, 4)], [ChunkSpec(1, 1), ChunkSpec(0, 17)]]


def checkpoints(root: Path) -> tuple[Path, Path]:
    """Two folders of one model: its experts as numbers, and in blocks with scales."""
    torch.manual_seed(0)
    sizes = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": INNER, "sliding_window": 9}
    model = reference_model("GptOssForCausalLM", **sizes)
    packed = {}
    for name, parameter in model.named_parameters():
        shape = {"gate_up_proj": (2 * INNER, WIDTH), "down_proj": (WIDTH, INNER)}.get(name.rpartition(".")[2])
        if shape is not None:
            stored = mxfp4_stored(EXPERTS, shape)
            with torch.no_grad():
                parameter.copy_(stored.weights["e.gate_up_proj"].transpose(1, 2))
            packed[name] = {kind: stored.tensors[f"e.gate_up_proj_{kind}"] for kind in ("blocks", "scales")}
    assert len(packed) == 4
    plain, quantized = root / "plain", root / "mxfp4"
    save(model, plain)
    byte_tokenizer(plain)
    shutil.copytree(plain, quantized)
    tensors = load_file(quantized / "model.safetensors")
    for name, parts in packed.items():
        del tensors[name]
        tensors |= {f"{name}_{kind}": tensor for kind, tensor in parts.items()}
    save_file(tensors, quantized / "model.safetensors", {"format": "pt"})
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (quantized / "config.json").write_text(json.dumps(config))
    return plain, quantized


@torch.inference_mode()
def test_logits_are_those_of_the_dequantized_experts(tmp_path: Path) -> None:
    found = []
    for folder in checkpoints(tmp_path):
        config = ModelConfig(model=str(folder), dtype="float32", device="cpu", activation_bits=16)
        loaded = load_model(config, registry.load(None))
        found.append(run_tokens(loaded.module, loaded.decoder, SEQS, STEPS))
    for plain, quantized in zip(*found, strict=True):
        torch.testing.assert_close(quantized, plain, atol=1e-4, rtol=1e-4)
        assert plain.std() > 0.01
