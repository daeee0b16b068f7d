"""Virtual tokens before prompts that are pooled, with peft as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, rig_of
from torch import Tensor
from virtual_tokens_rig import FOUND, World, prompts_of, using

from quire.params.pooling import PoolingParams

PROMPTS = [*prompts_of(3, seed=8), [7]]
KINDS = (None, "prompt", "prefix")


def pooled(rig: Rig, kind: str | None, prompts: Sequence[Sequence[int]], task: str) -> list[Tensor]:
    params = PoolingParams(task=task)
    ids = [rig.add(prompt, params, adapters=using(kind)) for prompt in prompts]  # type: ignore[arg-type]
    answers = rig.drain()
    return [torch.from_numpy(answers[i, 0].last.pooled.numbers().copy()) for i in ids]


@torch.inference_mode()
def states(world: World, kind: str | None, prompt: Sequence[int]) -> Tensor:
    """Hidden states that peft returns, [tokens, width], those of virtual tokens included if it has any."""
    found: Any = world.models[kind](input_ids=torch.tensor([list(prompt)]), output_hidden_states=True)
    return found.hidden_states[-1][0]  # type: ignore[no-any-return]


def close(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= 1e-4)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 3}])
def test_a_decoder_pools_the_last_token_or_every_token_of_the_client(settings: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path, "LlamaForCausalLM", ("prompt", "prefix"))
    with rig_of(world.folder, FOUND, **settings) as rig:
        world.load(rig)
        for kind in KINDS:
            wanted = [states(world, kind, prompt)[-len(prompt) :] for prompt in PROMPTS]
            for found, all_of in zip(pooled(rig, kind, PROMPTS, "embed"), wanted, strict=True):
                assert close(found, torch.nn.functional.normalize(all_of[-1], dim=-1)), kind
            for found, all_of in zip(pooled(rig, kind, PROMPTS, "token_embed"), wanted, strict=True):
                assert close(found, torch.nn.functional.normalize(all_of, dim=-1)), kind


def test_an_encoder_takes_the_mean_of_all_tokens(tmp_path: Path) -> None:
    world = World(tmp_path, "BertModel", ("prompt",))
    with rig_of(world.folder, FOUND, max_num_batched_tokens=64) as rig:
        world.load(rig)
        for kind in KINDS[:2]:
            for prompt, found in zip(PROMPTS, pooled(rig, kind, PROMPTS, "embed"), strict=True):
                assert close(found, torch.nn.functional.normalize(states(world, kind, prompt).mean(0), dim=-1)), kind
