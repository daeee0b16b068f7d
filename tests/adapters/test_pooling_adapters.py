"""Adapters change what prompts are pooled to, beside the base and texts being written; peft says how."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_rig import Rig, greedy, related_prompts, rig_of
from serving import serving
from torch import Tensor

from quire.errors import BadRequest
from quire.hooks import registry
from quire.params.pooling import PoolingParams
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import byte_tokenizer, reference_model, save

BASES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"task_type": "CAUSAL_LM"},
    "Qwen3Model": {"task_type": "FEATURE_EXTRACTION"},
    "Qwen2ForSequenceClassification": {"task_type": "SEQ_CLS"},
    "Gemma2ForTokenClassification": {"task_type": "TOKEN_CLS", "exclude_modules": ["score"]},
    "BertModel": {"task_type": "FEATURE_EXTRACTION", "exclude_modules": ".*pooler.*"},
    "BertForSequenceClassification": {"task_type": "SEQ_CLS", "exclude_modules": ["classifier"]},
    "XLMRobertaForSequenceClassification": {"task_type": "SEQ_CLS", "exclude_modules": ["classifier"]},
    "ModernBertForSequenceClassification": {"task_type": "SEQ_CLS", "exclude_modules": ["classifier"]},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "XLMRobertaForSequenceClassification": {"type_vocab_size": 1, "max_position_embeddings": 514},
    "ModernBertForSequenceClassification": {"local_attention": 8, "global_attn_every_n_layers": 2, "num_labels": 3},
}


def reference(architecture: str) -> Any:
    return reference_model(architecture, **ENCODERS.get(architecture, {}))


def adapter(base: str, folder: Path, number: int, **config: Any) -> Path:
    """An adapter of random numbers for a model; its folder."""
    from peft import LoraConfig, get_peft_model

    generator = torch.Generator().manual_seed(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"r": 2**number, "lora_alpha": 8, "target_modules": "all-linear", **BASES[base], **config}
        model = get_peft_model(reference(base), LoraConfig(**settings))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def oracle(base: str, path: Path | None, prompts: Sequence[Sequence[int]], task: str) -> list[Tensor]:
    """What transformers makes of each prompt, with peft if there is an adapter."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = reference(base)
        if path is not None:
            model = PeftModel.from_pretrained(model, path).eval()
        inner = model.base_model.model if path is not None else model
        found = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            if task == "embed":
                body = getattr(inner, "model", inner)
                states = body(ids).last_hidden_state[0]
                one = states[-1] if "Bert" not in base else states.mean(0)
                found.append(torch.nn.functional.normalize(one, dim=-1))
            else:
                found.append(inner(ids).logits[0].softmax(-1))
    return found


def vectors(rig: Rig, prompts: Sequence[Sequence[int]], names: Sequence[str | None], task: str) -> list[Tensor]:
    ids = [
        rig.add(p, PoolingParams(task=task), adapters=(WeightedAdapter(AdapterRef(name=name)),) if name else ())
        for p, name in zip(prompts, names, strict=True)
    ]
    talk = [rig.add(p, greedy(6)) for p in prompts[:2] if "generate" in rig.engine.info.tasks]
    answers = rig.drain()
    assert all(answers[i, 0].last.finish_reason in ("stop", "length") for i in [*ids, *talk])
    return [torch.from_numpy(answers[i, 0].last.pooled.numbers().copy()) for i in ids]


@pytest.mark.parametrize("base", BASES)
def test_a_mixed_batch_is_pooled_as_peft_has_it(base: str, tmp_path: Path) -> None:
    save(reference(base), tmp_path / "base")
    byte_tokenizer(tmp_path / "base")
    paths = {f"a{i}": adapter(base, tmp_path / f"a{i}", i) for i in range(3)}
    task = "embed" if BASES[base]["task_type"] in ("CAUSAL_LM", "FEATURE_EXTRACTION") else "classify"
    task = "token_classify" if BASES[base]["task_type"] == "TOKEN_CLS" else task
    prompts = related_prompts(8)
    names = [None, "a0", "a1", "a2"] * 2
    with rig_of(tmp_path / "base", registry.load(None, enable_lora=True), max_num_batched_tokens=64) as rig:
        for name, path in paths.items():
            rig.engine.load_adapter(name, path)
        found = vectors(rig, prompts, names, task)
    for i, name in enumerate(names):
        (wanted,) = oracle(base, paths[name] if name else None, [prompts[i]], task)
        assert found[i].shape == wanted.shape
        assert (found[i] - wanted).abs().max() <= 1e-4, (i, name)


def test_a_classifier_that_an_adapter_brings_must_fit(tmp_path: Path) -> None:
    base = "Qwen2ForSequenceClassification"
    save(reference(base), tmp_path / "base")
    byte_tokenizer(tmp_path / "base")
    path = adapter(base, tmp_path / "a", 1)
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "adapter_model.safetensors")
    name = next(name for name in tensors if "score" in name)
    save_file({**tensors, name: torch.ones(5, 64)}, path / "adapter_model.safetensors")
    found = registry.load(None, enable_lora=True)
    shapes = r"has shape \[5, 64\]; this model needs \[2, 64\]"
    with rig_of(tmp_path / "base", found) as rig, pytest.raises(BadRequest, match=shapes):
        rig.engine.load_adapter("a", path)


@pytest.mark.slow
def test_an_adapter_is_named_as_the_model_of_embeddings_and_classes_over_http(tmp_path: Path) -> None:
    texts = ["who sings", "the old red house by the river"]
    prompts = [list(text.encode()) for text in texts]
    flags = ["--enable-lora", "--dtype", "float32", "--num-pages", "200", "--lora-modules"]
    wanted = {}
    for base, task in (("LlamaForCausalLM", "embed"), ("Qwen2ForSequenceClassification", "classify")):
        save(reference(base), tmp_path / base)
        byte_tokenizer(tmp_path / base)
        path = adapter(base, tmp_path / f"{base}-adapter", 2)
        flags.append(json.dumps({"name": f"tuned-{task}", "path": str(path), "base_model_name": base}))
        wanted[task] = oracle(base, path, prompts, task)
    models = [
        f"{path.name}={path}" for path in (tmp_path / "LlamaForCausalLM", tmp_path / "Qwen2ForSequenceClassification")
    ]
    with serving(*models, *flags) as server:
        embedded = httpx.post(f"{server.url}/v1/embeddings", json={"model": "tuned-embed", "input": texts}).json()
        classes = httpx.post(f"{server.url}/classify", json={"model": "tuned-classify", "input": texts}).json()
    assert (embedded["model"], classes["model"]) == ("tuned-embed", "tuned-classify")
    for i in range(2):
        assert (torch.tensor(embedded["data"][i]["embedding"]) - wanted["embed"][i]).abs().max() <= 1e-4
        assert (torch.tensor(classes["data"][i]["probs"]) - wanted["classify"][i]).abs().max() <= 1e-4
