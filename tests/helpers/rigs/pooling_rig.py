"""Tiny pooling models, and the vectors that transformers computes."""

import json
from pathlib import Path
from typing import Any

import torch
from engine_rig import Rig
from torch import Tensor

from quire.params.pooling import PoolingParams
from quire_testing.tiny import byte_tokenizer, reference_model, save

RELATIVE = 1e-5
"""Of the largest number: how far float32 results may be from the oracle's."""


def made(tmp_path: Path, architecture: str, **overrides: Any) -> tuple[Path, Any]:
    """The folder of a tiny random model, and the model."""
    reference = reference_model(architecture, **overrides)
    save(reference, tmp_path)
    return byte_tokenizer(tmp_path), reference


@torch.inference_mode()
def hidden_of(model: Any, prompt: list[int]) -> Tensor:
    """Hidden states after the last norm, [tokens, width]."""
    decoder = getattr(model, "model", model)
    states: Tensor = decoder(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    return states


def pooled(rig: Rig, prompts: list[list[int]], **params: Any) -> list[Tensor]:
    ids = [rig.add(prompt, PoolingParams(**params)) for prompt in prompts]
    answers = rig.drain()
    for request_id in ids:
        last = answers[request_id, 0].last
        assert (last.finish_reason, last.error, len(answers[request_id, 0].deltas)) == ("stop", None, 1)
    return [torch.from_numpy(answers[i, 0].last.pooled.numbers().copy()) for i in ids]


def close(found: Tensor, wanted: Tensor) -> bool:
    assert found.shape == wanted.shape
    return bool((found - wanted).abs().max() <= RELATIVE * wanted.abs().max())


def unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
