"""LoRA on blocks of the tower, on the projector and on the decoder of Qwen2-Audio, in one batch; peft is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_rig import greedy, rig_of
from qwen_audio_adapted import Kit, uses
from qwen_audio_rig import PROMPTS

from quire.hooks import registry

ASKED = [PROMPTS[0], PROMPTS[2], PROMPTS[5]]


def test_adapters_of_all_parts_give_what_peft_gives_beside_the_base(tmp_path: Path) -> None:
    kit = Kit(tmp_path, ("all", "tower", "projector", "text"))
    found = registry.load(["qwen-audio"], enable_lora=True)
    with rig_of(kit.model.folder, found, max_num_batched_tokens=37, num_pages=225) as rig:
        for name, folder in kit.folders.items():
            rig.engine.load_adapter(name, folder)
        asked = {}
        for name in ("", *kit.folders):
            for i, (text, sounds) in enumerate(ASKED):
                prompt = kit.model.prompt(found, rig.engine.info, text, *sounds)
                params = greedy(16, ignore_eos=True, prompt_logprobs=0)
                asked[name, i] = rig.add(prompt, params, adapters=uses(name)), prompt.token_ids
        answers = rig.drain()
    outputs = set()
    for name in ("", *kit.folders):
        oracle = kit.oracle(name)
        for i, (text, sounds) in enumerate(ASKED):
            request_id, ids = asked[name, i]
            answer = answers[request_id, 0]
            assert answer.token_ids == kit.model.greedy(text, *sounds, count=16, model=oracle), (name, text)
            expected = kit.model.logits(text, *sounds, model=oracle).log_softmax(-1)
            ours = [entry.logprob for entry in answer.deltas[0].prompt_logprobs or () if entry]
            assert ours == pytest.approx(expected[range(len(ids) - 1), ids[1:]].tolist(), abs=1e-4), (name, text)
            outputs.add((i, tuple(answer.token_ids)))
    assert len(outputs) == len(asked) - 2  # text alone passes by two of the adapters
