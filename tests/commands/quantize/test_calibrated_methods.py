"""GPTQ and AWQ: less error of the outputs than rounding to nearest, for a layer and for a trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import quire_demos
from quire.cli import main
from quire.engine.loading.load import load_model
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.testing import run_tokens
from quire_plugins.quantization.scale_search import CodeGrid, quantize
from quire_quantize.calibration import read_samples
from quire_quantize.methods.gptq import compensated

CHAT = Path(quire_demos.__file__).parent / "demo_chat"


def inputs_with_correlations(count: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(count, size, generator=generator) @ torch.randn(size, size, generator=generator)
    return mixed * torch.rand(size, generator=generator) ** 2 / size**0.5


@pytest.mark.parametrize("size", [16, 32, 256, 384])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_gptq_has_less_error_of_the_outputs_than_the_search(size: int, asymmetric: bool) -> None:
    x = inputs_with_correlations(2000, 384 if size == 384 else 256)
    weight = torch.randn(64, x.shape[1], generator=torch.Generator().manual_seed(1))
    grid = CodeGrid(4, size, asymmetric, conventional=True)
    errors = [
        float((x @ (found.dequantized() - weight).T).square().mean())
        for found in (compensated("w", weight, x.T @ x, grid), quantize(weight, grid))
    ]
    assert errors[0] < 0.75 * errors[1]


def test_gptq_bears_inputs_that_are_always_zero_or_the_same() -> None:
    x = inputs_with_correlations(300, 64)
    x[:, 5], x[:, 9] = 0.0, x[:, 8]
    weight, grid = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)), CodeGrid(4, 32)
    found = compensated("w", weight, x.T @ x, grid)
    assert found.problem() is None
    assert (x @ (found.dequantized() - weight).T).square().mean() < 0.1


@pytest.mark.slow
def test_both_are_nearer_to_a_trained_model_than_rounding_to_nearest(tmp_path: Path) -> None:
    asked = [
        f"<|im_start|>user\nWhat is {a} {sign} {b}?<|im_end|>\n"
        f"<|im_start|>assistant\n{a} {sign} {b} = {result}<|im_end|>\n"
        for a in range(7, 99, 4)
        for b in range(3, 30, 6)
        for sign, result in (("+", a + b), ("-", a - b))
    ]
    pairs = ["".join(asked[start::50]) for start in range(50)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": pair}) + "\n" for pair in pairs[::2]))
    tokenizer = Tokenizer.load(CHAT)
    seqs = [tokenizer.encode(text) for text in pairs[1::4]]
    plugins = registry.load(None)

    def logprobs(folder: Path) -> Tensor:
        loaded = load_model(ModelConfig(model=str(folder), device="cpu", dtype="float32", activation_bits=16), plugins)
        with torch.inference_mode():
            return torch.cat(run_tokens(loaded.module, loaded.decoder, seqs)).log_softmax(-1)

    expected, found = logprobs(CHAT), {}
    for method in ("rtn", "gptq", "awq"):
        words = [] if method == "rtn" else ["--calibration", str(tmp_path / "texts.jsonl")]
        assert main(["quantize", str(CHAT), str(tmp_path / method), "--method", method, *words]) == 0
        found[method] = float((expected.exp() * (expected - logprobs(tmp_path / method))).sum(-1).mean())
    assert found["gptq"] < 0.8 * found["rtn"]
    assert found["awq"] < found["rtn"]


def test_a_text_is_cut_into_samples_that_are_spread_over_it(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "text.txt", Tokenizer.load(CHAT)
    file.write_text(" ".join(map(str, range(3000))))
    ids = tokenizer.encode(file.read_text())
    found = read_samples(file, tokenizer, 4, 50)
    assert [len(sample) for sample in found] == [50] * 4
    starts = [next(i for i in range(len(ids)) if ids[i : i + 50] == sample) for sample in found]
    assert starts[0] == 0
    assert starts[-1] > len(ids) / 2
    assert starts == sorted(starts)


def test_each_line_is_a_sample(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "texts.jsonl", Tokenizer.load(CHAT)
    file.write_text('{"text": "one two three four five"}\n\n{"text": "six seven"}\n{"text": "eight nine"}\n')
    found = read_samples(file, tokenizer, 2, 3)
    assert found == [tokenizer.encode("one two three four five")[:3], tokenizer.encode("six seven")[:3]]
