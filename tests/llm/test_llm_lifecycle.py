"""Sleep of the offline class, and further models beside it."""

from pathlib import Path

import pytest
from lora_rig import Base

from quire import LLM, SamplingParams
from quire.errors import BadRequest, ModelAsleep, NotFound
from quire.types import LoRARequest
from quire_testing.tiny import tiny_llama

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
PROMPT = "To be or not to be, that is the question"


def said(llm: LLM, adapter: Path | None = None) -> tuple[int, ...]:
    request = LoRARequest("style", 1, str(adapter)) if adapter else None
    (output,) = llm.generate(PROMPT, GREEDY, lora_request=request, use_tqdm=False)
    return tuple(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("models") / "base", "LlamaForCausalLM")


@pytest.fixture
def small(base: Base) -> LLM:
    return LLM(str(base.folder), dtype="float32", device="cpu", num_pages=64, max_model_len=256, enable_lora=True)


def test_a_model_sleeps_and_wakes(small: LLM, base: Base) -> None:
    adapter = base.adapter("style", r=4, target_modules=["q_proj", "down_proj"])
    with small as llm:
        before = said(llm), said(llm, adapter)
        (again,) = llm.generate(PROMPT, GREEDY, use_tqdm=False)
        assert again.num_cached_tokens
        for level in (1, 2):
            llm.enqueue(PROMPT, GREEDY)
            llm.sleep(level)
            assert llm.is_sleeping
            assert llm.wait_for_completion(use_tqdm=False) == []
            with pytest.raises(ModelAsleep, match="wake_up"):
                said(llm)
            llm.wake_up(tags=["weights"])
            assert llm.is_sleeping
            llm.wake_up(tags=["kv_cache"])
            assert not llm.is_sleeping
            (first,) = llm.generate(PROMPT, GREEDY, use_tqdm=False)
            assert first.num_cached_tokens == 0
            assert (tuple(first.outputs[0].token_ids), said(llm, adapter)) == before
        llm.enqueue(PROMPT, GREEDY)
        llm.sleep(level=2, mode="wait")
        (waited,) = llm.wait_for_completion(use_tqdm=False)
        assert tuple(waited.outputs[0].token_ids) == before[0]
        llm.wake_up()
        assert said(llm) == before[0]
        llm.sleep()
        llm.sleep(2)
    llm.close()


def test_wrong_calls_of_sleep_are_refused(llm: LLM, small: LLM) -> None:
    with pytest.raises(BadRequest, match="cannot be loaded again"):
        llm.sleep()
    with small as real:
        for call in (lambda: real.sleep(3), lambda: real.sleep(mode="keep"), lambda: real.wake_up(["all"])):
            with pytest.raises(BadRequest):
                call()
        assert not real.is_sleeping


def test_further_models_are_loaded_with_the_same_settings(small: LLM, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", seed=3)
    with small as llm:
        second = llm.load("second", str(other), num_pages=32)
        assert llm.models["second"] is second
        assert (second.info.num_pages, second.info.max_model_len) == (32, 256)
        assert said(second) != said(llm)
        with pytest.raises(BadRequest, match="in use"):
            llm.load("second", str(other))
        llm.unload("second")
        for call in (lambda: llm.unload("second"), lambda: llm.unload("third")):
            with pytest.raises(NotFound, match="Models loaded: none"):
                call()
        third = llm.load("second", str(other))
        assert said(third)
    assert llm.models == {}
