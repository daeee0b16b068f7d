"""Engines on tiny models that keep state, and a check of what they give: one forward over prompt and output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_rig import Answer, Rig, rig_of
from running_state import RunningState
from safetensors.torch import save_file

from quire.hooks import registry
from quire.records import Architecture, Registry
from quire_models import (
    Attention,
    Block,
    Decoder,
    GatedMlp,
    MixerBlock,
    ParallelMixers,
    RMSNorm,
    Rope,
    WeightsMapper,
)
from quire_models.testing import run_tokens
from quire_testing.tiny import byte_tokenizer

VOCAB, WIDTH = 256, 32
ATTENTION = Attention(heads=4, kv_heads=2, head_dim=8, rope=Rope(8))
STATE, MLP, NORM = RunningState(24), GatedMlp(48), RMSNorm()
KINDS = {
    "hybrid": (Block(STATE, MLP, NORM), Block(ATTENTION, MLP, NORM), Block(STATE, MLP, NORM)),
    "parallel": (Block(ParallelMixers(ATTENTION, STATE), MLP, NORM), Block(ATTENTION, MLP, NORM)),
    "state only": (MixerBlock(STATE, NORM), MixerBlock(STATE, NORM)),
    "attention only": (Block(ATTENTION, MLP, NORM), Block(ATTENTION, MLP, NORM)),
}
"""Blocks of models by kind."""


def hybrid_registry() -> Registry:
    """The bundled plugins, and an architecture whose config names one of KINDS."""

    def decoder(config: Any) -> Decoder:
        return Decoder(VOCAB, WIDTH, KINDS[config.kind], NORM)

    found = registry.load(None, enable_lora=True)
    ours = Architecture(name="TinyHybrid", decoder=decoder, names=WeightsMapper(()))
    known = {**found.records["quire_architectures"], ours.name: ours}
    return replace(found, records={**found.records, "quire_architectures": known})


def hybrid_folder(root: Path, kind: str = "hybrid") -> Path:
    """A model folder without weights, for `--load-format dummy`."""
    folder = root / kind.replace(" ", "_")
    folder.mkdir(exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["TinyHybrid"],
        "kind": kind,
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "max_position_embeddings": 400,
        "torch_dtype": "float32",
        "eos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return byte_tokenizer(folder)


@contextmanager
def hybrid_engine(root: Path, kind: str = "hybrid", **settings: Any) -> Iterator[Rig]:
    """An engine with random weights, always the same ones."""
    with rig_of(hybrid_folder(root, kind), hybrid_registry(), load_format="dummy", **settings) as rig:
        yield rig


def check_greedy(rig: Rig, prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """Assert that each token is the most likely one after those before it."""
    logits = run_tokens(rig.engine.loaded.module, rig.engine.loaded.decoder, [[*prompt, *tokens]])[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == list(tokens)


def check_logprobs(rig: Rig, prompt: Sequence[int], answer: Answer) -> None:
    """Assert that the reported log-probabilities are those of the tokens after all tokens before them."""
    loaded, tokens = rig.engine.loaded, answer.token_ids
    logits = run_tokens(loaded.module, loaded.decoder, [[*prompt, *tokens]])[0][len(prompt) - 1 : -1]
    known = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    found = torch.tensor([entry.logprob for entry in answer.logprobs])
    torch.testing.assert_close(found, known, atol=1e-4, rtol=1e-4)


def lora_on_state(folder: Path) -> Path:
    """A LoRA adapter of the projections of the first block, which keeps state."""
    folder.mkdir(exist_ok=True)
    generator, tensors = torch.Generator().manual_seed(4), {}
    for name, outputs, inputs in (("inner", STATE.channels, WIDTH), ("out", WIDTH, STATE.channels)):
        path = f"base_model.model.blocks.0.attn.{name}"
        tensors[f"{path}.lora_A.weight"] = torch.randn(4, inputs, generator=generator)
        tensors[f"{path}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["inner", "out"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
