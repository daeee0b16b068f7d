"""An engine whose pages are kept beside the device: what it finds again, and that nothing wrong is ever found."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Answer, Rig, bundled, greedy, make_rig, random_ids, rig_of
from random_adapters import Kit, write_adapter

from quire.engine.kv_tiers import lookup
from quire.engine.kv_tiers.build import SharedTiers
from quire.engine.kv_tiers.rates import Rates
from quire.engine_process.engine_builder import EngineBuilder
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter
from quire_testing.tiny import tiny_llama, tiny_model

kept = partial(rig_of, max_num_batched_tokens=96)
PROMPT = random_ids(random.Random(1), 90)
NUM_PAGES = 22
"""Pages of four tokens that are found of the prompt, whose last token is always computed."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, requests wait for pages."""
    monkeypatch.setattr(lookup, "INDEX_S", 60.0)
    monkeypatch.setattr(lookup, "MAX_READ_S", 60.0)
    monkeypatch.setattr(Rates, "compute_s", lambda self, num_tokens: None)
    monkeypatch.setattr(Rates, "should_read", lambda self, num_tokens, num_bytes: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    with rig_of(model) as rig:
        return asked(rig).token_ids


def asked(rig: Rig, prompt: list[int] = PROMPT, **request: Any) -> Answer:
    """The answer to a prompt, after all pages are written."""
    assert rig.engine._tiers.flush(60)
    request_id = rig.add(prompt, greedy(12, ignore_eos=True), **request)
    answer = rig.drain()[request_id, 0]
    assert rig.engine._tiers.flush(60)
    return answer


def cached(answer: Answer) -> int:
    return answer.deltas[0].num_cached_tokens or 0


def tier(rig: Rig, name: str) -> Any:
    stats = rig.engine.stats().kv_tiers
    assert stats is not None
    return next(each for each in stats.tiers if each.name == name)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))


def test_a_new_engine_finds_the_pages_of_one_before_it(model: Path, expected: list[int], tmp_path: Path) -> None:
    with rig_of(model, kv_disk=str(tmp_path)) as rig:
        first = asked(rig)
        assert (first.token_ids, cached(first)) == (expected, 0)
    with rig_of(model, kv_disk=str(tmp_path), num_pages=64) as rig:
        second = asked(rig)
        assert (second.token_ids, cached(second)) == (expected, NUM_PAGES * 4)
        assert tier(rig, "disk").num_hits_total == NUM_PAGES + 1  # and the digest of the checkpoint
        stats = rig.engine.stats().kv_tiers
        assert stats is not None
        assert stats.num_hit_tokens_total == stats.num_queried_tokens_total == NUM_PAGES * 4
        longer = asked(rig, PROMPT + expected + [5])  # its pages in memory are those of the first answer
        assert cached(longer) == (len(PROMPT) + len(expected) - 1) // 4 * 4


@pytest.mark.parametrize(
    "change",
    [{"dtype": "bfloat16"}, {"kv_cache_dtype": "int8"}, {"page_size": 8}, {"quantization": "int8"}],
    ids=lambda change: next(iter(change)),
)
def test_pages_that_are_computed_otherwise_have_other_keys(
    model: Path, keys: tuple[str, ...], tmp_path: Path, change: dict[str, Any]
) -> None:
    with kept(model, kv_disk=str(tmp_path), **change) as rig:
        assert not set(keys_of(rig)) & set(keys)


def keys_of(rig: Rig) -> tuple[str, ...]:
    """The keys of the pages of the prompt."""
    assert rig.engine._tiers.flush(60)
    request = Request(id="r", prompt=Prompt(token_ids=tuple(PROMPT)), params=greedy())
    found = rig.engine._tiers._keys.of_prompt(request, 11)
    assert found is not None
    return tuple(found)


@pytest.fixture(scope="module")
def keys(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    with kept(model, kv_disk=str(tmp_path_factory.mktemp("keys"))) as rig:
        found = keys_of(rig)
    assert len(set(found)) == 11
    return found


def test_keys_are_of_the_content_of_a_checkpoint(model: Path, keys: tuple[str, ...], tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    with kept(copy, kv_disk=str(tmp_path / "kv"), num_pages=200, max_num_seqs=3) as rig:
        assert keys_of(rig) == keys
    shutil.copy(tiny_llama(tmp_path / "other", seed=1) / "model.safetensors", copy / "model.safetensors")
    with kept(copy, kv_disk=str(tmp_path / "kv")) as rig:
        assert not set(keys_of(rig)) & set(keys)


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
    with rig_of(model, kv_disk=str(tmp_path)) as rig:
        asked(rig)
        for path in files(tmp_path)[::5]:
            path.unlink()
        rig.engine.reset_prefix_cache()
        assert asked(rig).token_ids == expected
        rig.engine.reset_prefix_cache()
        assert cached(asked(rig)) == NUM_PAGES * 4  # they were written again


def test_host_memory_has_what_the_device_has_no_room_for(model: Path, expected: list[int]) -> None:
    with rig_of(model, num_pages=40, kv_offloading_size=0.01) as rig:
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
    with kept(model, num_pages=48, kv_offloading_size=0.01, preemption="recompute") as rig:
        assert rig.engine._tiers.flush(60)
        for _ in range(3):
            assert rig.tokens(prompts, greedy(10, ignore_eos=True)) == expected
        assert tier(rig, "host").num_hits_total > 0
        rig.add(prompts[0])
        rig.engine.abort(rig.add(prompts[1]))
        rig.drain()
        assert not rig.engine._tiers._lookups


def test_requests_say_whether_and_how_long_their_pages_are_kept(model: Path, tmp_path: Path) -> None:
    with rig_of(model, kv_disk=str(tmp_path)) as rig:
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
        with rig_of(model, kv_disk=str(tmp_path)) as rig:
            found = [cached(asked(rig, cache_salt=salt)) for salt in (*salts, None)]
            assert found == ([0, 0, 0] if salts[0] == "one" else [NUM_PAGES * 4] * 3)


def test_an_adapter_whose_content_changes_under_its_name_never_gets_old_pages(model: Path, tmp_path: Path) -> None:
    first, second = (write_adapter(tmp_path / f"a{seed}", "SCALE", seed) for seed in (1, 2))
    folder = tmp_path / "adapter"
    with rig_of(model, Kit().registry, kv_disk=str(tmp_path / "kv")) as rig:

        def ask(name: str, **request: Any) -> tuple[list[int], int]:
            rig.engine.reset_prefix_cache()
            answer = asked(rig, adapters=(WeightedAdapter(AdapterRef(name=name)),), **request)
            return answer.token_ids, cached(answer)

        found = []
        for source in (first, second):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            rig.engine.load_adapter("x", folder, replacing=True)
            found.append(ask("x"))
            assert found[-1] == ask("x", cache_salt="of its own")
            assert found[-1][1] == 0
        assert found[0] != found[1]
        rig.engine.load_adapter("y", first)  # equal content under another name
        assert ask("y") == (found[0][0], NUM_PAGES * 4)
        assert ask("x") == (found[1][0], NUM_PAGES * 4)
        contents = rig.engine._tiers._keys._contents
        for ref, (revision, digest, seen) in contents.items():  # as if the files had changed before they were digested
            contents[ref] = (revision, digest, (*seen, ("other", 1, 1, 1)))
        assert ask("x") == (found[1][0], 0)


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
    builder.end()


def test_two_engines_share_a_folder_that_is_too_small_for_both(model: Path, tmp_path: Path) -> None:
    prompts = [random_ids(random.Random(seed), 60) for seed in range(10)]
    with kept(model) as rig:
        expected = rig.tokens(prompts, greedy(6, ignore_eos=True))
    limit, wrong = 150_000, list[Any]()
    rigs = [
        make_rig(model, kv_disk=str(tmp_path), kv_disk_bytes=limit, num_pages=40, max_num_batched_tokens=96)
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
    from thread_ranks import launch_thread

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
