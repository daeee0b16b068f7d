"""Engines on a device, and requests that are driven to their end in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter
from quire_models.loading import weights

GEOMETRIES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8},
}
"""Sizes of Llama 3.2 1B and 3.1 8B, and one to run the suite itself on a CPU."""


@cache
def plugins() -> Registry:
    """All bundled plugins and the runtimes of adapters."""
    return registry.load(None, enable_lora=True)


def write_geometry(name: str, folder: Path) -> Path:
    """A folder with the config of a Llama of that size, and no weights."""
    sizes = GEOMETRIES[name]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256 if name != "tiny" else 264,
        "num_key_value_heads": 8 if name != "tiny" else 2,
        "head_dim": {"1B": 64, "8B": 128, "tiny": 16}[name],
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": name == "1B",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        **sizes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def random_weights_on(device: str) -> Iterator[None]:
    """Random weights of `--load-format dummy` are drawn on the device: billions of numbers take seconds on a CPU."""
    before: Callable[..., Tensor] = weights._random

    def drawn(name: str, shape: torch.Size, generator: Any) -> Tensor:
        if len(shape) > 1:
            return torch.randn(shape, device=device, dtype=torch.bfloat16) / shape[-1] ** 0.5
        return torch.rand(shape, device=device) * 0.2 + 0.9

    weights._random = drawn  # type: ignore[assignment]
    try:
        yield
    finally:
        weights._random = before


@contextmanager
def engine_of(folder: Path, device: str, **settings: Any) -> Iterator[Engine]:
    config = ModelConfig(model=str(folder), device=device, served_model_name=("model",), **settings)
    engine = build_engine(config, plugins())
    try:
        yield engine
    finally:
        engine.close()
        if device == "cuda":
            torch.cuda.empty_cache()


def is_captured(engine: Engine) -> bool:
    """Whether its decode steps are CUDA graphs."""
    runner: Any = engine._runner
    return runner._executor.graphs is not None


class Client:
    """Adds requests to an engine and collects their tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tokens = engine, dict[str, list[int]]()
        self.errors = dict[str, Any]()

    def add(self, prompt: Sequence[int], max_tokens: int, adapter: str | None = None, **params: Any) -> str:
        name = f"r{len(self.tokens)}"
        self.tokens[name] = []
        given = SamplingParams(**{"temperature": 0, "ignore_eos": True, **params, "max_tokens": max_tokens})
        adapters = () if adapter is None else (WeightedAdapter(AdapterRef(name=adapter)),)
        self.engine.add(Request(id=name, prompt=Prompt(token_ids=tuple(prompt)), params=given, adapters=adapters))
        return name

    def step(self) -> int:
        """Run one step; returns the number of new tokens."""
        count = 0
        for delta in self.engine.step():
            self.tokens[delta.request_id] += delta.token_ids
            count += len(delta.token_ids)
            if delta.error is not None:
                self.errors[delta.request_id] = delta.error
        return count

    def drain(self) -> None:
        while self.engine.has_work:
            self.step()

    def answers(self, prompts: Sequence[Sequence[int]], max_tokens: int, **params: Any) -> list[list[int]]:
        names = [self.add(prompt, max_tokens, **params) for prompt in prompts]
        return self.ended(names)

    def ended(self, names: Sequence[str]) -> list[list[int]]:
        """Tokens of these requests once all have ended."""
        self.drain()
        if self.errors:
            raise RuntimeError(f"requests failed: {self.errors}")
        return [self.tokens[name] for name in names]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
