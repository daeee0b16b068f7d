"""LoRA on the tower, the projector and the decoder of LLaVA at once; peft is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from llava_adapted import ADAPTERS, Kit, uses
from llava_rig import CASES, Model, picture

from quire.errors import BadRequest
from quire.hooks import registry
from quire.types import Prompt
from quire_adapters.lora_runtime import LoraRuntime

LENGTH = 16
TEXTS = [("see <image>?", [picture(1)]), ("<image> or <image>", [picture(2, 30, 60), picture(1)]), ("none", [])]


@pytest.fixture(scope="module", params=["1.5", "NeXT"])
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    names = ADAPTERS if request.param == "1.5" else ("all", "some", "projector", "whole")
    folder = tmp_path_factory.mktemp("llava")
    return Kit(folder, Model(folder / "base", CASES[request.param]), {name: ADAPTERS[name] for name in names})


@pytest.fixture(scope="module")
def rig(kit: Kit) -> Iterator[Rig]:
    found = registry.load(None, enable_lora=True)
    with rig_of(kit.model.folder, found, max_num_batched_tokens=29, num_pages=225) as made:
        for name, folder in kit.folders.items():
            made.engine.load_adapter(name, folder)
        yield made


def prompts(kit: Kit, rig: Rig) -> list[Prompt]:
    found = registry.load(None)
    return [kit.model.prompt(found, rig.engine.info, text, *pictures) for text, pictures in TEXTS]


def test_each_adapter_gives_what_peft_gives_in_one_batch_with_the_others_and_the_base(kit: Kit, rig: Rig) -> None:
    asked = {
        (name, i): rig.add(prompt, greedy(LENGTH, ignore_eos=True, prompt_logprobs=0), adapters=uses(name))
        for name in ("", *kit.folders)
        for i, prompt in enumerate(prompts(kit, rig))
    }
    answers = rig.drain()
    outputs = set()
    for name in ("", *kit.folders):
        oracle = kit.oracle(name)
        for i, (prompt, (_, pictures)) in enumerate(zip(prompts(kit, rig), TEXTS, strict=True)):
            answer = answers[asked[name, i], 0]
            assert answer.last.error is None
            expected = kit.model.logits(prompt, *pictures, model=oracle).log_softmax(-1)
            scored = answer.deltas[0].prompt_logprobs or ()
            ours = torch.tensor([entry.logprob for entry in scored[1:] if entry is not None])
            theirs = expected[:-1].gather(1, torch.tensor(prompt.token_ids[1:])[:, None])[:, 0]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
            assert answer.token_ids == kit.model.greedy(prompt, *pictures, count=LENGTH, model=oracle), (name, i)
            outputs.add((i, tuple(answer.token_ids)))
    reading = [name for name in kit.folders if name in ("all", "text", "whole", "names")]  # those of the decoder
    assert len(outputs) == 2 * (1 + len(kit.folders)) + 1 + len(reading)


def test_a_picture_goes_through_the_tower_once_for_each_adapter_that_changes_it(kit: Kit, rig: Rig) -> None:
    prompt = kit.model.prompt(registry.load(None), rig.engine.info, "see <image> and text behind it", picture(4))
    before = rig.engine.stats()
    for name in ("", *kit.folders) * 2:
        rig.add(prompt, greedy(2), adapters=uses(name))
        rig.drain()
    stats = rig.engine.stats()
    encoded, found = (
        getattr(stats, name) - getattr(before, name) for name in ("num_media_encoded_total", "num_media_found_total")
    )
    in_tower = len([name for name in kit.folders if name != "text"])
    assert encoded == in_tower + 1  # once for the base, and for who leaves the tower alone
    assert found == (1 if "text" in kit.folders else 0)  # the rest is found in the prefix cache


def test_adapters_may_work_on_a_tower_together(kit: Kit, rig: Rig) -> None:
    (prompt, _, _) = prompts(kit, rig)
    answers = {}
    for names in (("all", "projector"), ("projector", "all"), ("all",), ("projector",)):
        request_id = rig.add(prompt, greedy(8, ignore_eos=True), adapters=uses(*names))
        answers[names] = rig.drain()[request_id, 0].token_ids
    assert answers["all", "projector"] == answers["projector", "all"]
    assert len({tuple(answer) for answer in answers.values()}) == 3


def test_what_cuts_patches_cannot_be_changed(kit: Kit, rig: Rig, tmp_path: Path) -> None:
    kit.folders["patches"] = kit.made(tmp_path, 9, "patches", {"r": 2, "target_modules": ["patch_embedding"]})
    try:
        with pytest.raises(BadRequest, match=r"changes .*patch_embedding', whose weight has another layout"):
            rig.engine.load_adapter("patches", kit.folders.pop("patches"))
    finally:
        kit.folders.pop("patches", None)


def test_a_runtime_that_fails_at_the_tower_fails_those_requests_only(
    kit: Kit, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, info = registry.load(None), rig.engine.info
    prompt, other = (kit.model.prompt(found, info, "see <image>?", picture(seed)) for seed in (5, 6))  # not yet encoded
    monkeypatch.setattr(LoraRuntime, "bind_tower", lambda self, uses, counts: 1 / 0)
    ids = [rig.add(one, greedy(4), adapters=uses(name)) for one in (prompt, other) for name in ("", "projector")]
    answers = rig.drain()
    errors = [answers[request_id, 0].last.error for request_id in ids]
    assert errors[0] is errors[2] is None
    assert all("'lora' failed: ZeroDivisionError" in (error or ("", ""))[1] for error in (errors[1], errors[3]))
