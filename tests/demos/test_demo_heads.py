"""The Medusa heads of the demo chat model: most of their drafts are right, and none changes an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo_scripts import modules_of
from engine_rig import greedy, rig_of
from transformers import AutoTokenizer

CHAT = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_chat"
SETTINGS: dict[str, Any] = {"page_size": 16, "max_num_batched_tokens": 512}


def test_a_step_gives_several_tokens_on_average() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    with modules_of("data.chat.conversations") as found:
        questions = vars(found)["conversations"].held_out_questions(16, seed="a draft")
    prompts = [
        tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        for question in questions
    ]
    with rig_of(CHAT, **SETTINGS) as rig:
        answers = rig.tokens(prompts, greedy(60))
    config = {"method": "medusa", "model": "demo-chat-heads", "num_speculative_tokens": 4, "adaptive": False}
    with rig_of(CHAT, speculative_config=config, **SETTINGS) as rig:
        for prompt, answer in zip(prompts, answers, strict=True):
            assert rig.tokens([prompt], greedy(60)) == [answer]
        assert 2.5 * rig.engine.stats().num_steps_total < sum(map(len, answers))
