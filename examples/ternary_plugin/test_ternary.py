"""The format passes the conformance check, and a model whose matrices are ternary is served."""

import json

import pytest
import torch
from quire_ternary import checkpoint
from quire_ternary.storage import POWERS
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.plugin import Quantization
from quire_testing import check_checkpoint_format, tiny_llama

CONFIG = {"quant_method": "ternary"}


def store(name, weight):
    """(tensors, dequantized) of a weight, rounded to the nearest of -1, 0 and 1 times a step (BitNet b1.58)."""
    step = weight.abs().mean(1) * 1.5
    signs = (weight / step[:, None]).round().clamp(-1, 1)
    padded = torch.zeros(len(weight), -(-weight.shape[1] // 5) * 5)
    padded[:, : weight.shape[1]] = signs
    trits = ((padded.view(len(weight), -1, 5) + 1) * POWERS).sum(2).to(torch.uint8)
    parts = {"trits": trits, "step": step, "inputs": torch.tensor([weight.shape[1]])}
    return {f"{name}.{part}": tensor for part, tensor in parts.items()}, signs * step[:, None]


@pytest.mark.parametrize("shape", [(16, 40), (33, 64)])
def test_the_format_keeps_the_contract(shape):
    torch.manual_seed(0)
    tensors, weight = store("a.b", torch.randn(shape))
    record = Quantization("ternary", checkpoint=checkpoint)
    check_checkpoint_format(record, CONFIG, tensors, {"a.b.weight": weight})


def test_a_model_is_served(tmp_path):
    plain, ternary = tiny_llama(tmp_path / "plain"), tiny_llama(tmp_path / "ternary")
    dense, packed = load_file(plain / "model.safetensors"), {}
    for name, weight in dense.items():
        if name.endswith("proj.weight"):
            stored, dense[name] = store(name.removesuffix(".weight"), weight)
            packed |= stored
        else:
            packed[name] = weight
    save_file(dense, plain / "model.safetensors", {"format": "pt"})
    save_file(packed, ternary / "model.safetensors", {"format": "pt"})
    config = json.loads((ternary / "config.json").read_text())
    (ternary / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIG}))
    answers = []
    for folder in (plain, ternary):
        with LLM(str(folder), plugins=["llama", "ternary"], dtype="float32", num_pages=64) as llm:
            params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
            answers.append(llm.generate(["the quick", "brown"], params, use_tqdm=False))
    assert [a.outputs[0].token_ids for a in answers[0]] == [a.outputs[0].token_ids for a in answers[1]]
