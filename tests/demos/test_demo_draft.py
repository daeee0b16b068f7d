"""The draft model of the demo chat model: most of its drafts are right, and none changes an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_scripts import modules_of
from engine_rig import Rig, greedy, rig_of
from transformers import AutoTokenizer

from quire.params.sampling import SamplingParams

CHAT = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_chat"
SETTINGS: dict[str, Any] = {"page_size": 16, "max_num_batched_tokens": 512}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    with modules_of("data.chat.conversations") as found:
        questions = vars(found)["conversations"].held_out_questions(16, seed="a draft")
    return [
        tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        for question in questions
    ]


@pytest.fixture(scope="module")
def plain() -> Iterator[Rig]:
    with rig_of(CHAT, **SETTINGS) as rig:
        yield rig


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_gives_three_tokens_on_average(plain: Rig, prompts: list[list[int]], temperature: float) -> None:
    params = greedy(60) if not temperature else SamplingParams(temperature=temperature, seed=3, max_tokens=60)
    answers = plain.tokens(prompts, params)
    config = {"method": "draft_model", "model": "demo-chat-draft", "num_speculative_tokens": 5, "adaptive": False}
    with rig_of(CHAT, speculative_config=config, **SETTINGS) as rig:
        for prompt, answer in zip(prompts, answers, strict=True):
            assert rig.tokens([prompt], params) == [answer]
        assert 3 * rig.engine.stats().num_steps_total < sum(map(len, answers))
