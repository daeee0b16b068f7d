"""An engine whose pages are kept beside the device: what it finds again, and that nothing wrong is ever found."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, bundled, greedy, make_rig, random_ids, rig_of
from thread_ranks import launch_thread
from tiered_rig import NUM_PAGES, PROMPT, asked, cached, files, kept, tier

from quire.engine.kv_tiers.build import SharedTiers
from quire.engine_process.engine_builder import EngineBuilder
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("patience")


def test_a_new_engine_finds_the_pages_of_one_before_it(model: Path, expected: list[int], tmp_path: Path) -> None:
    with rig_of(model, page_size=4, kv_disk=str(tmp_path)) as rig:
        first = asked(rig)
        assert (first.token_ids, cached(first)) == (expected, 0)
    with rig_of(model, page_size=4, kv_disk=str(tmp_path), num_pages=64) as rig:
        second = asked(rig)
        assert (second.token_ids, cached(second)) == (expected, NUM_PAGES * 4)
        assert tier(rig, "disk").num_hits_total == NUM_PAGES + 1  # and the digest of the checkpoint
        stats = rig.engine.stats().kv_tiers
        assert stats is not None
        assert stats.num_hit_tokens_total == stats.num_queried_tokens_total == NUM_PAGES * 4
        longer = asked(rig, PROMPT + expected + [5])  # its pages in memory are those of the first answer
        assert cached(longer) == (len(PROMPT) + len(expected) - 1) // 4 * 4


def test_damaged_files_change_no_answer(model: Path, tmp_path: Path) -> None:
    rng, num_damaged = random.Random(3), 0
    prompt = random_ids(rng, 480)
    with rig_of(model, kv_disk=str(tmp_path), max_num_batched_tokens=512) as rig:
        expected = asked(rig, prompt).token_ids
        while num_damaged < 1000:
            for path in files(tmp_path):
                content = bytearray(path.read_bytes()) or bytearray(b"empty")
                if rng.random() < 0.8:
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                else:
                    del content[rng.randrange(len(content)) :]
                path.write_bytes(content)
                num_damaged += 1
            rig.engine.reset_prefix_cache()
            answer = asked(rig, prompt)
            assert (answer.token_ids, cached(answer)) == (expected, 0)
        assert tier(rig, "disk").num_corrupted_total > 0
        assert tier(rig, "disk").num_errors_total == 0
        shutil.rmtree(tmp_path)
        rig.engine.reset_prefix_cache()
        assert asked(rig, prompt).token_ids == expected


def test_pages_that_are_missing_in_the_middle_are_computed(model: Path, expected: list[int], tmp_path: Path) -> None:
    with rig_of(model, page_size=4, kv_disk=str(tmp_path)) as rig:
        asked(rig)
        for path in files(tmp_path)[::5]:
            path.unlink()
        rig.engine.reset_prefix_cache()
        assert asked(rig).token_ids == expected
        rig.engine.reset_prefix_cache()
        assert cached(asked(rig)) == NUM_PAGES * 4  # they were written again


def test_host_memory_has_what_the_device_has_no_room_for(model: Path, expected: list[int]) -> None:
    with rig_of(model, page_size=4, num_pages=40, kv_offloading_size=0.01) as rig:
        asked(rig)
        for seed in range(4):
            asked(rig, random_ids(random.Random(seed + 10), 100))
        answer = asked(rig)
        assert (answer.token_ids, cached(answer)) == (expected, NUM_PAGES * 4)
        assert tier(rig, "host").num_hits_total == NUM_PAGES


def test_many_prompts_at_once_in_little_memory_get_their_answers(model: Path) -> None:
    prompts = [random_ids(random.Random(seed % 6), 60 + seed) for seed in range(18)]
    with kept(model) as rig:
        expected = rig.tokens(prompts, greedy(10, ignore_eos=True))
    with kept(model, num_pages=12, kv_offloading_size=0.01, preemption="recompute") as rig:
        assert rig.engine._tiers.flush(60)
        for _ in range(3):
            assert rig.tokens(prompts, greedy(10, ignore_eos=True)) == expected
        assert tier(rig, "host").num_hits_total > 0
        rig.add(prompts[0])
        rig.engine.abort(rig.add(prompts[1]))
        rig.drain()
        assert not rig.engine._tiers._lookups


def test_requests_say_whether_and_how_long_their_pages_are_kept(model: Path, tmp_path: Path) -> None:
    with rig_of(model, page_size=4, kv_disk=str(tmp_path)) as rig:
        disk = rig.engine._tiers._stack.tiers[-1]  # type: ignore[union-attr]
        asked(rig, cache_ttl=0.0)
        assert len(files(tmp_path)) == 1  # the digest of the checkpoint
        rig.engine.reset_prefix_cache()
        asked(rig, cache_ttl=100.0)
        rig.engine.reset_prefix_cache()
        assert cached(asked(rig)) == NUM_PAGES * 4
        rig.engine.reset_prefix_cache()
        now = disk._clock
        disk._clock = lambda: now() + 101
        assert cached(asked(rig)) == 0


def test_salts_keep_pages_apart(model: Path, tmp_path: Path) -> None:
    for salts in (("one", "two"), ("two", "one")):
        with rig_of(model, page_size=4, kv_disk=str(tmp_path)) as rig:
            found = [cached(asked(rig, cache_salt=salt)) for salt in (*salts, None)]
            assert found == ([0, 0, 0] if salts[0] == "one" else [NUM_PAGES * 4] * 3)


@contextmanager
def built(builder: EngineBuilder, config: ModelConfig) -> Iterator[Rig]:
    engine = builder.build(config, bundled(), 1)
    yield Rig(engine)  # type: ignore[arg-type]
    builder.close(engine)


def test_a_model_that_is_loaded_again_in_the_process_finds_its_pages(model: Path, expected: list[int]) -> None:
    builder = EngineBuilder()
    config = ModelConfig(
        model=str(model), dtype="float32", device="cpu", page_size=4, num_pages=128, kv_offloading_size=0.01
    )
    with built(builder, config) as rig:
        asked(rig)
    with built(builder, replace(config, served_model_name=("other",))) as rig:
        answer = asked(rig)
        assert (answer.token_ids, cached(answer)) == (expected, NUM_PAGES * 4)
    assert builder._ledgers[True].reserved == int(0.01 * 2**30)  # of the tier, which outlives the models
    builder.end()


def test_two_engines_share_a_folder_that_is_too_small_for_both(model: Path, tmp_path: Path) -> None:
    prompts = [random_ids(random.Random(seed), 60) for seed in range(10)]
    with kept(model) as rig:
        expected = rig.tokens(prompts, greedy(6, ignore_eos=True))
    limit, wrong = 150_000, list[Any]()
    rigs = [
        make_rig(model, kv_disk=str(tmp_path), kv_disk_bytes=limit, num_pages=10, max_num_batched_tokens=96)
        for _ in range(2)
    ]

    def work(rig: Rig, seed: int) -> None:
        order = random.Random(seed).choices(range(10), k=12)
        for numbers in (order[i : i + 3] for i in range(0, 12, 3)):
            found = rig.tokens([prompts[i] for i in numbers], greedy(6, ignore_eos=True))
            wrong.extend(i for i, tokens in zip(numbers, found, strict=True) if tokens != expected[i])

    threads = [threading.Thread(target=work, args=(rig, seed)) for seed, rig in enumerate(rigs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rig in rigs:
        assert rig.engine._tiers.flush(60)
        assert tier(rig, "disk").num_errors_total == 0
        rig.engine.close()
    assert wrong == []
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit


@pytest.mark.parametrize("setting", [{"tensor_parallel_size": 2}, {"enable_prefix_caching": False}])
def test_models_whose_pages_cannot_be_kept_say_so(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, setting: dict[str, Any]
) -> None:
    rig = make_rig(model, None, launch_thread, kv_disk=str(tmp_path), **setting)
    assert "are kept on the device only" in caplog.text
    assert rig.engine.stats().kv_tiers is None
    rig.engine.close()
    assert not files(tmp_path)


def test_a_model_with_recurrent_state_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rig_of(tiny_model(tmp_path / "m", "MambaForCausalLM"), kv_disk=str(tmp_path / "kv"), max_model_len=64):
        assert "it has recurrent state" in caplog.text


def test_memory_of_the_host_is_as_large_as_the_largest_setting() -> None:
    tiers = SharedTiers(bundled())
    small, large = (ModelConfig(model="m", kv_offloading_size=size) for size in (0.001, 0.01))
    assert tiers.open(small).tiers[0] is tiers.open(large).tiers[0] is tiers.open(small).tiers[0]
    assert tiers.open(small).tiers[0].store.capacity == int(0.01 * 2**30)  # type: ignore[attr-defined]
    assert tiers.open(ModelConfig(model="m")).tiers == ()
