"""The engine by example: what it refuses, how requests end, what plugins may do to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, related_prompts, rig_of

from quire.errors import BadRequest, ConfigError, NotFound, Overloaded
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec
from quire.types import AdapterRef, Media, Prompt, Request, WeightedAdapter
from quire_testing.tiny import END_ID, VOCAB_SIZE, tiny_llama

PROMPT = list(b"To be or not")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    with rig_of(folder) as made:
        yield made


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ([], greedy(), "no tokens"),
        ([1, VOCAB_SIZE], greedy(), f"`prompt` has token id {VOCAB_SIZE}; the vocabulary has ids from 0 to 263"),
        ([1, -1], greedy(), "token id -1"),
        ([1, 2.5], greedy(), "integers"),
        ([1, 2**70], greedy(), "`prompt`"),
        (PROMPT, greedy(stop_token_ids=[9999]), "`stop_token_ids` has token id 9999"),
        (PROMPT, greedy(allowed_token_ids=[1, 9999]), "`allowed_token_ids` has token id 9999"),
        (PROMPT, greedy(logit_bias={9999: 1.0}), "`logit_bias` has token id 9999"),
        (PROMPT, greedy(bad_word_ids=((5, 9999),)), "`bad_words` has token id 9999"),
        (PROMPT, greedy(bad_word_ids=((),)), "without tokens"),
        ([1] * 513, greedy(), "maximum context length is 512 tokens. However, your prompt has 513 tokens"),
        ([1] * 512, greedy(None), "your prompt has 512 tokens"),
        ([1] * 500, greedy(13), "you requested 513 tokens: 500 in the prompt and 13 for the output"),
        ([1] * 500, BeamSearchParams(beam_width=2, max_tokens=13), "you requested 513 tokens"),
        (PROMPT, greedy(extra={"magic": 1}), "No logits processor has the field `magic`"),
        (PROMPT, greedy(structured=StructuredSpec(kind="poem", source="x")), "by 'poem'; kinds known: .*choice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(rig: Rig, prompt: list[Any], params: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        rig.add(prompt, params)
    assert not rig.engine.has_work


def test_an_adapter_is_refused_while_no_runtime_is_loaded(rig: Rig) -> None:
    with pytest.raises(NotFound, match="sonnets"):
        rig.add(PROMPT, adapters=(WeightedAdapter(AdapterRef(name="sonnets")),))


def test_media_are_refused_by_a_model_of_text(rig: Rig) -> None:
    media = Media(modality="image", start=0, length=2, digest="d", tensors={})
    with pytest.raises(BadRequest, match="text only"):
        rig.engine.add(Request(id="m", prompt=Prompt(token_ids=(1, 2, 3), media=(media,)), params=greedy()))


def test_ids_of_requests_in_flight_are_unique(rig: Rig) -> None:
    rig.add(PROMPT, id="twin")
    with pytest.raises(BadRequest, match="twin"):
        rig.add(PROMPT, id="twin")
    assert len(rig.drain()) == 1


def test_more_requests_than_may_queue_are_refused(folder: Path) -> None:
    with rig_of(folder, max_num_queued_reqs=2) as rig:
        rig.add(PROMPT)
        rig.add(PROMPT)
        with pytest.raises(Overloaded):
            rig.add(PROMPT)
        assert len(rig.drain()) == 2


def test_an_unknown_policy_stops_the_start_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"fcfs, priority.*'luck'"), rig_of(folder, scheduling_policy="luck"):
        pass


# --- how requests end ------------------------------------------------------------------------------------


def test_without_max_tokens_a_text_ends_with_the_context(folder: Path) -> None:
    with rig_of(folder, max_model_len=40) as rig:
        request_id = rig.add(PROMPT, greedy(None, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
    assert len(PROMPT) + len(answer.token_ids) == 40
    assert answer.last.finish_reason == "length"


def test_a_stop_id_ends_the_text_and_is_named(rig: Rig) -> None:
    (free,) = rig.tokens([PROMPT], greedy(ignore_eos=True))
    stop = free[5]
    end = free.index(stop)
    request_id = rig.add(PROMPT, greedy(ignore_eos=True, stop_token_ids=[stop]))
    answer = rig.drain()[request_id, 0]
    assert answer.token_ids == free[: end + 1]
    assert (answer.last.finish_reason, answer.last.stop_reason) == ("stop", stop)


def test_the_end_of_text_ends_the_text_but_not_before_min_tokens(rig: Rig) -> None:
    eager = {END_ID: 100.0}
    assert rig.tokens([PROMPT], greedy(logit_bias=eager)) == [[END_ID]]
    (late,) = rig.tokens([PROMPT], greedy(logit_bias=eager, min_tokens=4))
    assert len(late) == 5
    assert late.index(END_ID) == 4
    assert rig.tokens([PROMPT], greedy(3, logit_bias=eager, ignore_eos=True)) == [[END_ID] * 3]


def test_abort_ends_one_request_only(rig: Rig) -> None:
    expected = rig.tokens([PROMPT], greedy(20, ignore_eos=True))[0]
    doomed = rig.add(related_prompts(1)[0], greedy(20, ignore_eos=True))
    other = rig.add(PROMPT, greedy(20, ignore_eos=True))
    for _ in range(4):
        rig.engine.step()
    rig.engine.abort(doomed)
    rig.engine.abort("nobody")
    answers = rig.drain()
    assert (doomed, 0) not in answers
    assert answers[other, 0].token_ids == expected[-len(answers[other, 0].token_ids) :]
    assert answers[other, 0].last.finish_reason == "length"
    stats = rig.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_pages_used) == (0, 0, 0)


def test_max_tokens_of_a_step_is_kept(rig: Rig) -> None:
    rig.add([1] * 50)
    rig.engine.step(max_tokens=3)
    rig.engine.step(max_tokens=2)
    assert rig.engine.stats().iteration_tokens[-2:] == (3, 2)
    rig.drain()


def test_requests_without_a_seed_differ_but_repeat_in_a_new_engine(folder: Path) -> None:
    found = []
    for _ in range(2):
        with rig_of(folder, seed=4) as rig:
            found.append(rig.tokens([PROMPT, PROMPT], SamplingParams(max_tokens=12)))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_best_of_draws_more_and_tells_how_likely_each_is(rig: Rig) -> None:
    request_id = rig.add(PROMPT, SamplingParams(n=2, best_of=4, max_tokens=6, seed=1))
    answers = rig.drain()
    lasts = [answers[request_id, i].last for i in range(4)]
    assert all(last.cumulative_logprob is not None for last in lasts)
    assert all(delta.logprobs is None for answer in answers.values() for delta in answer.deltas)


def test_prefixes_are_cached_until_the_cache_is_reset(folder: Path) -> None:
    with rig_of(folder) as rig:
        prompt = PROMPT * 3
        counts = []
        for reset in (False, False, True):
            if reset:
                assert rig.engine.reset_prefix_cache() > 0
            request_id = rig.add(prompt, greedy(1))
            counts.append(rig.drain()[request_id, 0].deltas[0].num_cached_tokens)
    assert counts == [0, 32, 0]


# --- when a step fails ---------------------------------------------------------------------------------------


def test_a_failing_step_ends_what_had_begun_and_the_engine_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig_of(folder, max_num_seqs=1) as rig:
        expected = rig.tokens([PROMPT], greedy())
        begun, waiting = rig.add(PROMPT), rig.add(PROMPT)
        rig.engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(rig.engine._runner, "launch", _broken)
            (delta,) = rig.engine.step()
        assert delta.request_id == begun
        assert delta.finish_reason == "error"
        assert delta.error is not None
        assert "the device is on fire" in delta.error[1]
        answers = rig.drain()
        assert [answers[waiting, 0].token_ids] == expected
        assert rig.engine.stats().num_pages_used == 0


def test_failed_steps_are_counted_until_one_computes_something(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with rig_of(folder) as rig:
        with monkeypatch.context() as broken:
            broken.setattr(rig.engine._runner, "launch", _broken)
            for count in (1, 2, 3):
                rig.add(PROMPT)
                (delta,) = rig.engine.step()
                assert (delta.finish_reason, rig.engine.failed_steps) == ("error", count)
            broken.setattr(rig.engine._scheduler, "plan", _broken)
            with pytest.raises(RuntimeError, match="on fire"):
                rig.engine.step()
            assert rig.engine.failed_steps == 4
        rig.engine.step()  # there is nothing to compute
        assert rig.engine.failed_steps == 4
        rig.add(PROMPT)
        rig.engine.step()
        assert rig.engine.failed_steps == 0


def _broken(*_: Any) -> Any:
    raise RuntimeError("the device is on fire")


# --- memory ------------------------------------------------------------------------------------------------------


def test_a_cache_too_small_for_the_length_asked_for_stops_the_start(folder: Path) -> None:
    said = "has 8 pages of 4 tokens .*--max-model-len 100 needs 25 .*or lower --max-model-len to 32"
    with pytest.raises(ConfigError, match=said), rig_of(folder, page_size=4, num_pages=8, max_model_len=100):
        pass


def test_a_length_that_was_not_asked_for_is_reduced_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rig_of(folder, num_pages=2) as rig:
        assert rig.engine.info.max_model_len == 32
        assert "no sequence can be longer than 32 tokens" in caplog.text
        assert len(rig.tokens([[1]], greedy(None, ignore_eos=True))[0]) == 31


def test_bytes_become_pages(folder: Path) -> None:
    page = 2 * 4 * 4 * 2 * (2 * 16)  # keys and values, tokens, bytes, blocks, heads · dimensions
    with rig_of(folder, num_pages=None, page_size=4, kv_cache_memory_bytes=200 * page + 5) as rig:
        assert rig.engine.info.num_pages == 200
    with rig_of(folder, num_pages=None, page_size=4, max_num_seqs=3) as rig:
        assert rig.engine.info.num_pages == 3 * 512 // 4, "no more than the seqs that may run can fill"


def test_swap_space_below_a_page_stops_the_start(folder: Path) -> None:
    with pytest.raises(ConfigError, match="less than one page"), rig_of(folder, swap_space=1e-9):
        pass


# --- shape -------------------------------------------------------------------------------------------------------


def test_the_engine_needs_none_of_the_servers_libraries() -> None:
    code = (
        "import sys\n"
        "for name in ('fastapi', 'pydantic', 'zmq', 'msgspec', 'pluggy', 'uvicorn', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
        "import quire.engine.engine\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
