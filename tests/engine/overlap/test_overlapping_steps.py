"""Steps that are launched before the one before is finished give what steps give one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from engine_rig import Rig, greedy, make_rig, related_prompts
from hypothesis import HealthCheck, given, settings, strategies as st
from lora_rig import Base
from overlap_rig import PretendedDevice, answers_of, asked, check_answers
from repeated_steps import RepeatedSteps, device_ops
from varied_requests import SETTINGS, answered, shown

from quire.engine.graphs import capture
from quire.engine.loading import load
from quire.hooks import registry

PROMPTS = related_prompts(9, seed=3)
ASKED = asked(PROMPTS, [None, None, "a", "b"])
SMALL: dict[str, Any] = {"num_pages": 5, "max_num_seqs": 8, "max_model_len": 80, "max_num_batched_tokens": 24}


@dataclass
class Engines:
    """One whose steps follow each other, and those whose steps overlap."""

    plain: Rig
    overlapping: tuple[Rig, Rig]
    device: PretendedDevice
    recorder: RepeatedSteps


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base") / "model", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def device() -> Iterator[PretendedDevice]:
    with pytest.MonkeyPatch.context() as patch:
        yield PretendedDevice(patch)


@pytest.fixture
def overlapping(base: Base, device: PretendedDevice) -> Iterator[Rig]:
    device.is_used = True
    rig = make_rig(base.folder)
    device.is_used = False
    yield rig
    rig.engine.close()


@pytest.fixture(scope="module")
def engines(base: Base, device: PretendedDevice) -> Iterator[Engines]:
    adapters = {name: base.adapter(name, r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"]) for name in "ab"}
    found = registry.load(None, enable_lora=True)
    swapping: dict[str, Any] = {"preemption": "swap", "swap_space": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        plain = make_rig(base.folder, found, **SMALL)
        device.is_used, recorder = True, RepeatedSteps()
        swapped = make_rig(base.folder, found, **SMALL, **swapping)
        patch.setattr(load, "choose_ops", lambda *_: device_ops())
        patch.setattr(capture, "recorder_of", lambda _: recorder)
        rigs = plain, make_rig(base.folder, found, **SMALL), swapped
        device.is_used = False
    for rig in rigs:
        for name, folder in adapters.items():
            rig.engine.load_adapter(name, folder)
    yield Engines(plain, rigs[1:], device, recorder)
    for rig in rigs:
        rig.engine.close()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(requests=st.lists(ASKED, min_size=1, max_size=8))
def test_answers_are_the_same(engines: Engines, requests: list[Any]) -> None:
    wanted = answers_of(engines.plain, requests, aborts=False)
    for rig in engines.overlapping:
        check_answers(requests, answers_of(rig, requests, aborts=True), wanted)


def test_the_drawn_requests_reached_everything(engines: Engines) -> None:
    captured, swapped = (rig.engine.stats() for rig in engines.overlapping)
    assert engines.device.most_unread == 2
    assert engines.device.num_read > 100
    assert engines.recorder.launches > 100
    assert captured.num_cached_tokens_total > 100
    assert captured.num_preemptions_recompute_total > 2
    assert swapped.num_preemptions_swap_total > 2


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[3]], ids=["roomy", "small"])
def test_requests_of_every_kind(base: Base, settings: dict[str, Any], device: PretendedDevice) -> None:
    plain, before = make_rig(base.folder, **settings), device.num_read
    device.is_used = True
    rig = make_rig(base.folder, **settings)
    device.is_used = False
    assert shown(answered(rig)) == shown(answered(plain))
    assert device.num_read > before
    for each in (rig, plain):
        each.engine.close()


def test_a_step_is_launched_before_the_one_before_is_read(overlapping: Rig, device: PretendedDevice) -> None:
    engine, before = overlapping.engine, device.num_read
    overlapping.add(PROMPTS[0][:5], greedy(6, ignore_eos=True))
    overlapping.add(PROMPTS[1][:5], greedy(9, ignore_eos=True))
    unread = []
    while engine.has_work:
        assert len(engine.step()) <= 2
        unread.append(len(engine._in_flight))
    assert unread[:8] == [1] * 8
    assert device.num_read == before + 9
    assert engine.stats().num_generated_tokens_total == 15


def test_rows_that_fail_while_others_are_unread(base: Base, overlapping: Rig) -> None:
    prompts = [prompt[:6] for prompt in PROMPTS[:3]]
    wanted = [base.greedy(None, prompt, 9) for prompt in prompts]
    ids = [overlapping.add(prompt, greedy(9, ignore_eos=True)) for prompt in prompts]
    executor: Any = overlapping.engine._runner._executor
    model: Any = executor._model

    def failing(batch: Any) -> Any:
        if 9 in batch.positions:
            raise RuntimeError("cannot compute this position")
        return model(batch)

    executor._model = failing
    last = overlapping.add([5, 6, 7], greedy(4, ignore_eos=True))
    answers = overlapping.drain()
    for each, tokens in zip(ids, wanted, strict=True):
        assert answers[each, 0].last.finish_reason == "error"
        assert answers[each, 0].token_ids == tokens[: len(answers[each, 0].token_ids)]
        assert len(answers[each, 0].token_ids) == 4
    assert answers[last, 0].last.finish_reason == "length"
    assert overlapping.engine.stats().num_pages_used == 0


def test_a_fault_of_the_device_ends_what_had_begun(overlapping: Rig, device: PretendedDevice) -> None:
    wanted = overlapping.tokens([PROMPTS[0]], greedy(9))
    ids = [overlapping.add(prompt, greedy(9, ignore_eos=True)) for prompt in PROMPTS[:3]]
    for _ in range(4):
        overlapping.engine.step()
    device.error = RuntimeError("an illegal memory access")
    answers = overlapping.drain()
    assert all(answers[each, 0].last.finish_reason == "error" for each in ids)
    assert overlapping.engine.stats().num_pages_used == 0
    assert overlapping.tokens([PROMPTS[0]], greedy(9)) == wanted
