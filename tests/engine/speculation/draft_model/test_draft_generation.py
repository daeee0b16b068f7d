"""A draft model that computes several drafts in one native call computes the same tokens as with a call for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_model_rig import draft_model_rig

from quire.engine.runner.input_batch import StepInputs
from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.types import Plan
from quire_testing.tiny import tiny_model

ROWS, COUNT = 3, 20
SIZES = {"num_hidden_layers": 2, "hidden_size": 128, "head_dim": 64}
"""Of models whose blocks are one program."""
MODELS = {
    "untied": ("LlamaForCausalLM", {"tie_word_embeddings": False}),
    "tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "scaled embeddings, window": ("Gemma2ForCausalLM", {"final_logit_softcapping": None, "sliding_window": 8}),
    "two bases of angles": ("Gemma3ForCausalLM", {"sliding_window": 8}),
    "norms of heads": ("Qwen3ForCausalLM", {}),
}


def first_inputs(page_size: int, num_pages: int) -> tuple[StepInputs, np.ndarray[Any, np.dtype[np.int64]]]:
    """The first tokens of sequences of other lengths, and the slots of these and of those after them: [COUNT, ROWS]"""
    pages = np.arange(ROWS * num_pages, dtype=np.int32).reshape(ROWS, num_pages)[:, ::-1].copy()
    positions = np.array([0, 5, page_size - 1])
    every = positions + np.arange(COUNT)[:, None]
    slots = pages[np.arange(ROWS), every // page_size] * np.int64(page_size) + every % page_size
    inputs = StepInputs(
        tokens=np.array([5, 9, 70]),
        positions=positions,
        slot_mapping=slots[0],
        starts=np.arange(ROWS + 1),
        contexts=positions + 1,
        pages=pages,
        prompt_lens=np.ones(ROWS, np.int32),
    )
    return inputs, slots


def one_by_one(drafter: ModelDrafter, inputs: StepInputs, slots: np.ndarray[Any, Any]) -> list[list[int]]:
    model, found = drafter._sampler.module, []
    for i in range(COUNT):
        step = StepInputs(
            tokens=inputs.tokens if not found else np.array(found[-1]),
            positions=inputs.positions + i,
            slot_mapping=slots[i],
            starts=inputs.starts,
            contexts=inputs.contexts + i,
            pages=inputs.pages,
            prompt_lens=inputs.prompt_lens,
        )
        found.append(model.argmax(drafter._executor.hidden_states(Plan(), step, np.arange(ROWS), None, {})))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_a_call_for_each(tmp_path: Path, name: str, dtype: str) -> None:
    architecture, config = MODELS[name]
    folder = tiny_model(tmp_path / "model", architecture, **SIZES, **config)
    with draft_model_rig(folder, folder, dtype=dtype) as (_, drafter), torch.inference_mode():
        inputs, slots = first_inputs(drafter._batch.page_size, 8)
        expected = one_by_one(drafter, inputs, slots)
        found = drafter._executor.generate(inputs, slots)
        assert found is not None
        assert found.tolist() == expected


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "Gemma2ForCausalLM"])
def test_a_model_that_needs_python_between_tokens_says_so(tmp_path: Path, architecture: str) -> None:
    """Learned positions; logits with a soft cap."""
    folder = tiny_model(tmp_path / "model", architecture)
    with draft_model_rig(folder, folder) as (_, drafter), torch.inference_mode():
        assert drafter._executor.generate(*first_inputs(drafter._batch.page_size, 8)) is None
