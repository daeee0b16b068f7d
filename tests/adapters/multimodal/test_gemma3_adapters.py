"""LoRA on the tower and the decoder of Gemma 3 at once; peft is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from gemma3_rig import Model
from llava_adapted import READING, SEEING, Kit, uses
from llava_rig import picture

from quire.errors import BadRequest
from quire.hooks import registry
from quire.types import Prompt

ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 8, "target_modules": f"{SEEING}|{READING}"},
    "linear": {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"},
    "tower": {"r": 3, "lora_alpha": 6, "target_modules": SEEING, "use_dora": True},
    "text": {"r": 5, "lora_alpha": 10, "target_modules": READING},
}
LENGTH = 16
PICTURE = "<start_of_image>"
TEXTS = [
    (f"see {PICTURE}?", [picture(1)]),
    (f"{PICTURE} or {PICTURE}", [picture(2, 30, 60), picture(1)]),
    ("none", []),
]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("gemma3")
    return Kit(folder, Model(folder / "base"), ADAPTERS)


@pytest.fixture(scope="module")
def rig(kit: Kit) -> Iterator[Rig]:
    found = registry.load(None, enable_lora=True)
    with rig_of(kit.model.folder, found, max_num_batched_tokens=29, num_pages=225) as made:
        for name, folder in kit.folders.items():
            made.engine.load_adapter(name, folder)
        yield made


def test_each_adapter_gives_what_peft_gives_in_one_batch_with_the_others_and_the_base(kit: Kit, rig: Rig) -> None:
    found = registry.load(None)
    prompts: list[Prompt] = [kit.model.prompt(found, rig.engine.info, text, *pictures) for text, pictures in TEXTS]
    asked = {
        (name, i): rig.add(prompt, greedy(LENGTH, ignore_eos=True, prompt_logprobs=0), adapters=uses(name))
        for name in ("", *kit.folders)
        for i, prompt in enumerate(prompts)
    }
    answers = rig.drain()
    outputs = set()
    for name in ("", *kit.folders):
        oracle = kit.oracle(name)
        for i, (prompt, (_, pictures)) in enumerate(zip(prompts, TEXTS, strict=True)):
            answer = answers[asked[name, i], 0]
            assert answer.last.error is None
            expected = kit.model.logits(prompt, *pictures, model=oracle).log_softmax(-1)
            scored = answer.deltas[0].prompt_logprobs or ()
            ours = torch.tensor([entry.logprob for entry in scored[1:] if entry is not None])
            theirs = expected[:-1].gather(1, torch.tensor(prompt.token_ids[1:])[:, None])[:, 0]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
            assert answer.token_ids == kit.model.greedy(prompt, *pictures, max_new_tokens=LENGTH, model=oracle), (
                name,
                i,
            )
            outputs.add((i, tuple(answer.token_ids)))
    assert len(outputs) == 2 * (1 + len(kit.folders)) + len(kit.folders)  # one of them changes the tower alone


def test_what_is_no_module_of_its_own_cannot_be_changed(kit: Kit, rig: Rig, tmp_path: Path) -> None:
    whole = {"r": 2, "target_modules": READING, "modules_to_save": ["multi_modal_projector"]}
    with pytest.raises(BadRequest, match=r"tensors of no known kind: .*mm_input_projection_weight"):
        rig.engine.load_adapter("whole", kit.made(tmp_path, 9, "whole", whole))
