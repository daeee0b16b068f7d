"""GGUF models in the engine: logits, greedy answers and embeddings, against transformers on dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_cases import CASES, MIXED, in_transformers
from gguf_models import write_model

from quire import LLM, SamplingParams
from quire.errors import ConfigError
from quire.hooks import registry
from quire.records import OpQuery
from quire_kernels import select
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.folder import model_folder, open_tensors
from quire_models.loading import checkpoint, weights
from quire_models.modules.builder import ModuleBuilder
from quire_models.testing import ChunkSpec, ModelDriver

FAMILIES = ["gemma", "gpt2", "granite", "llama", "mistral", "olmo", "phi", "qwen"]
PROMPT = list(range(3, 21))


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"bert"}))
def test_logits_are_those_of_transformers_on_dequantized_weights(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = tmp_path / "model.gguf"
    write_model(case.model(), path, MIXED, **case.metadata)
    theirs = in_transformers(case, path, tmp_path)(torch.tensor([PROMPT])).logits[0]
    config = checkpoint.read_config(model_folder(open_parts(path), tmp_path / "gguf"))
    family = registry.load(FAMILIES).by_hook("quire_architectures")[case.architecture]
    decoder = family.decoder(config)
    ops = select.choose(OpQuery("cpu", "float32", head_dims=(16,)))
    device = torch.device("cpu")
    model = decoder.build(ModuleBuilder(ops, torch.float32, device, keep_weights=False, activation_bits=16))
    weights.load(model, decoder, family.names, open_tensors(open_parts(path)))
    driver = ModelDriver(model, decoder, [PROMPT])
    ours = driver.step([ChunkSpec(0, len(PROMPT))])[0]
    torch.testing.assert_close(ours[-1], theirs[-1], rtol=1e-4, atol=1e-4)


def loaded(path: Path, **settings: Any) -> LLM:
    given = {"dtype": "float32", "activation_bits": 16, "kv_cache_memory_bytes": 1 << 22, **settings}
    return LLM(str(path), **given)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_answers_are_greedy_as_those_of_transformers(cached: Path) -> None:
    case = CASES["qwen2"]
    write_model(case.model(), cached / "model.gguf", MIXED)
    reference = in_transformers(case, cached / "model.gguf", cached)
    ids = torch.tensor([PROMPT])
    expected = reference.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=None, pad_token_id=0
    )
    with loaded(cached / "model.gguf") as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        found = llm.generate({"prompt_token_ids": PROMPT}, params)
    assert list(found[0].outputs[0].token_ids) == expected[0, len(PROMPT) :].tolist()


def test_embeddings_are_pooled_and_normalized_as_the_file_says(cached: Path) -> None:
    case = CASES["bert"]
    write_model(case.model(), cached / "model.gguf", MIXED)
    reference = in_transformers(case, cached / "model.gguf", cached)
    with torch.inference_mode():
        hidden = reference(torch.tensor([PROMPT])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden.mean(0), dim=0)
    with loaded(cached / "model.gguf") as llm:
        found = llm.embed({"prompt_token_ids": PROMPT})
    torch.testing.assert_close(torch.tensor(found[0].outputs.embedding), expected, rtol=1e-4, atol=1e-4)


def test_a_quantization_at_loading_is_refused_for_a_file_that_is_quantized(cached: Path) -> None:
    write_model(CASES["llama"].model(), cached / "model.gguf", MIXED)
    with pytest.raises(
        ConfigError, match=r"--quantization int4: .*model\.gguf is quantized already \(Q5_0, Q5_1, Q8_0\)"
    ):
        loaded(cached / "model.gguf", quantization="int4")
