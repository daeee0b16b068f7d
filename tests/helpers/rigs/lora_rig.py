"""Adapters made with peft on tiny random models, and what peft makes of them: the oracle of the LoRA tests."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel, load_model
from quire.hooks import registry
from quire.isolation.plugin_calls import InProcessCalls, SubprocessCalls
from quire.records import Context, Registry
from quire.settings.model_config import ModelConfig
from quire.types import Chunk, Plan
from quire_adapters.lora_runtime import LoadedAdapter, LoraRuntime
from quire_models.testing import ChunkSpec, ModelDriver
from quire_testing.tiny import byte_tokenizer, reference_model, save

SPECIAL: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
    "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
"""What an architecture needs to be tiny."""


class Base:
    """A tiny random model on disk."""

    def __init__(self, folder: Path, architecture: str, **overrides: Any) -> None:
        self.folder, self._made = folder, (architecture, {**SPECIAL.get(architecture, {}), **overrides})
        self._num_adapters = 0
        save(self.reference(), folder)
        byte_tokenizer(folder)

    def reference(self) -> Any:
        """A new copy of the model, as transformers has it."""
        architecture, config = self._made
        model = reference_model(architecture, **config)
        if model.config.tie_word_embeddings:
            with torch.no_grad():  # else a tied model says the last token for ever
                model.get_input_embeddings().weight.mul_(0.1)
        return model

    def adapter(self, name: str, like: float = 1.0, **config: Any) -> Path:
        """Make one with peft and random numbers; `like`: how large they are. Gives its folder."""
        from peft import LoraConfig, get_peft_model

        folder = self.folder.parent / f"{self.folder.name}-{name}"
        generator = torch.Generator().manual_seed(self._num_adapters)
        self._num_adapters += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = get_peft_model(self.reference(), LoraConfig(task_type="CAUSAL_LM", **config))
            randomize_adapter(model, like, generator)
            model.save_pretrained(folder)
        return folder

    @torch.inference_mode()
    def oracle(self, adapter: Path | None, seqs: Sequence[Sequence[int]]) -> list[Tensor]:
        """Logits [tokens, vocab] of each seq, by transformers with peft."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self._with(adapter)
            return [model(torch.tensor([seq])).logits[0] for seq in seqs]

    def greedy(self, adapter: Path | None, seq: Sequence[int], count: int) -> list[int]:
        """The tokens that they continue a seq with."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ids = torch.tensor([seq])
            made = self._with(adapter).generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens: list[int] = made[0, len(seq) :].tolist()
        return tokens

    def _with(self, adapter: Path | None) -> Any:
        from peft import PeftModel

        model = self.reference()
        return model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()


def randomize_adapter(model: Any, like: float = 1.0, generator: torch.Generator | None = None) -> None:
    """Give the trainable numbers of a model of peft random values; `like`: how large they are."""
    generator = generator or torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            _train(path, parameter, like, generator)


def _train(path: str, parameter: Any, like: float, generator: torch.Generator) -> None:
    if not parameter.requires_grad:
        return
    noise = torch.randn(parameter.shape, generator=generator)
    if "magnitude" in path:
        parameter.mul_(1 + 0.3 * noise)
    elif parameter.dim() == 1 or "modules_to_save" in path:
        parameter.add_(0.1 * noise)
    else:
        parameter.copy_(like * noise / parameter.shape[-1] ** 0.5)


class OnDisk(Protocol):
    """A model in a folder."""

    folder: Path


class Ours:
    """The same model here, with the runtime attached to it."""

    def __init__(
        self,
        base: OnDisk,
        slots: int = 8,
        max_rank: int = 64,
        found: Registry | None = None,
        apart: SubprocessCalls | None = None,
        **config: Any,
    ) -> None:
        settings = {"dtype": "float32", "device": "cpu", **config}
        found = found or registry.load(None)
        self.loaded: LoadedModel = load_model(ModelConfig(model=str(base.folder), **settings), found)
        self.lora = LoraRuntime(
            Context(
                names=self.loaded.names, max_slots=slots, max_rank=max_rank, in_subprocess=apart or InProcessCalls()
            )
        )
        self.lora.attach(self.loaded.module)

    @torch.inference_mode()
    def logits(
        self, seqs: Sequence[Sequence[int]], uses: Sequence[Mapping[LoadedAdapter, float]], chunk: int = 1000
    ) -> list[Tensor]:
        """Logits [tokens, vocab] of each seq, all in one batch, of at most `chunk` tokens of each at a time.

        uses: the adapters of each seq with their weights; all must get slots.
        """
        adapter_slots = [sorted((self._slot(adapter), weight) for adapter, weight in use.items()) for use in uses]
        driver = ModelDriver(self.loaded.module, self.loaded.decoder, seqs)
        found: list[list[Tensor]] = [[] for _ in seqs]
        while left := _pieces(seqs, driver.computed, chunk):
            forward = driver.forward(left)
            at_work = [adapter_slots[piece.seq] for piece in left]
            rows = [use for piece, use in zip(left, at_work, strict=True) for _ in range(piece.count)]
            if any(at_work):
                forward.adapters = self.lora.bind_step(_plan(left, seqs), at_work)
            hidden = self.loaded.module(forward).clone()
            logits = self.loaded.module.logits(hidden, self.lora.bind_logits(rows) if any(at_work) else None)
            for piece, part in zip(left, logits.split([piece.count for piece in left]), strict=True):
                found[piece.seq].append(part)
        for adapter in {adapter for use in uses for adapter in use}:
            self.lora.release_slot(adapter)
        return [torch.cat(parts) for parts in found]

    def _slot(self, adapter: LoadedAdapter) -> int:
        slot = self.lora.acquire_slot(adapter)
        assert slot is not None
        return slot


def _pieces(seqs: Sequence[Sequence[int]], computed: Sequence[int], chunk: int) -> list[ChunkSpec]:
    counts = [len(seq) - done for seq, done in zip(seqs, computed, strict=True)]
    return [ChunkSpec(i, min(chunk, count)) for i, count in enumerate(counts) if count]


def _plan(pieces: Sequence[ChunkSpec], seqs: Sequence[Sequence[int]]) -> Plan:
    return Plan(
        chunks=tuple(
            Chunk(
                seq_id=piece.seq, start=0, token_ids=tuple(seqs[piece.seq][: piece.count]), new_pages=(), samples=True
            )
            for piece in pieces
        )
    )


def random_seqs(count: int, length: int = 20, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 256, (count, length)).tolist()
