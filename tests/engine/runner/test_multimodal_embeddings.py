"""Towers in the engine: batches of media items, and embeddings that are cached for equal items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, make_rig, rig_of
from points_rig import Points, cloud, points_folder, points_registry, prompt_of, run

from quire.engine.multimodal.encoder_cache import EncoderCache, MediaKey
from quire.errors import ConfigError
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_models import TowerCall

ROW = 64 * 4
"""Bytes of a row of the tiny model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return points_folder(tmp_path_factory.mktemp("points"))


class Kit:
    """Engines on the tiny model, without a prefix cache, and prompts for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, points_registry()
        with rig_of(folder, self.found) as rig:
            self.inputs = MultimodalProcessor(self.found, rig.engine.info, Tokenizer.load(folder))

    def rig(self, **settings: Any) -> Any:
        Points.runs = Points.calls = 0
        return rig_of(self.folder, self.found, **{"enable_prefix_caching": False, **settings})

    def prompt(self, *clouds: torch.Tensor, text: str = "") -> Prompt:
        return prompt_of(self.inputs, self.folder, "<points>" * len(clouds) + text, *clouds)


@pytest.fixture(scope="module")
def kit(folder: Path) -> Kit:
    return Kit(folder)


def figures(rig: Rig) -> tuple[int, int, int]:
    """Media encoded, media found, and rows kept."""
    stats = rig.engine.stats()
    return stats.num_media_encoded_total, stats.num_media_found_total, stats.num_encoder_cache_bytes // ROW


# --- batches -----------------------------------------------------------------------------------------


def test_media_of_a_step_run_together_up_to_a_number_of_rows(kit: Kit) -> None:
    prompts = [kit.prompt(cloud(seed, 4), cloud(seed + 50, 3)) for seed in range(6)]
    with kit.rig(max_num_batched_tokens=64, max_num_encoder_tokens=10) as rig:
        answers = run(rig, prompts)
        assert (Points.runs, Points.calls) == (12, 6)
        assert figures(rig)[:2] == (12, 0)
    with kit.rig(max_num_batched_tokens=64, max_num_encoder_tokens=1) as rig:
        assert run(rig, prompts) == answers
        assert (Points.runs, Points.calls) == (12, 12)
    with kit.rig(max_num_batched_tokens=64) as rig:
        assert run(rig, prompts) == answers
        assert (Points.runs, Points.calls) == (12, 1)


def test_of_media_that_fail_together_only_those_fail_that_fail_alone(kit: Kit) -> None:
    good = [kit.prompt(cloud(seed, 4)) for seed in range(3)]
    bad = [kit.prompt(torch.full((4, 3), value)) for value in (torch.nan, 13.0)]
    with kit.rig(max_num_batched_tokens=64) as rig:
        alone = run(rig, good)
    with kit.rig(max_num_batched_tokens=64) as rig:
        ids = [rig.add(prompt, greedy(8, ignore_eos=True)) for prompt in (good[0], bad[0], good[1], bad[1], good[2])]
        answers = rig.drain()
        assert [answers[ids[i], 0].token_ids for i in (0, 2, 4)] == alone
        for i, said in ((1, "a point lies nowhere"), (3, "needs rows of shape [4, 64]; the tower returned [1, 64]")):
            assert said in (answers[ids[i], 0].last.error or ("", ""))[1]
        assert figures(rig)[:2] == (3, 0)


def test_when_one_item_of_a_prompt_fails_the_embeddings_of_the_others_stay_cached(kit: Kit) -> None:
    with kit.rig(max_num_batched_tokens=64) as rig:
        request_id = rig.add(kit.prompt(cloud(1, 4), torch.full((4, 3), torch.nan)), greedy(2))
        assert "a point lies nowhere" in (rig.drain()[request_id, 0].last.error or ("", ""))[1]
        assert figures(rig) == (1, 0, 4)
        run(rig, [kit.prompt(cloud(1, 4))])
        assert figures(rig) == (1, 1, 4)


def test_a_tower_that_returns_no_list_is_an_error(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, said in ((torch.zeros(1, 2, 64), "a list of 1 tensors; got Tensor"), ([], "got a list of 0")):
        monkeypatch.setattr(Points, "forward", lambda self, items, call, made=made: made)
        with kit.rig() as rig:
            request_id = rig.add(kit.prompt(cloud(1, 2)), greedy(2))
            assert said in (rig.drain()[request_id, 0].last.error or ("", ""))[1]


def test_each_medium_keeps_the_memory_of_its_own_rows_only(kit: Kit) -> None:
    with kit.rig(max_num_batched_tokens=64) as rig:
        run(rig, [kit.prompt(cloud(1, 4), cloud(2, 9))])
        entries = rig.engine._towers._cache._entries.values()
        assert sorted(entry.rows.untyped_storage().nbytes() // ROW for entry in entries) == [4, 9]


# --- rows that are kept ------------------------------------------------------------------------------


def test_the_same_medium_goes_through_the_tower_once(kit: Kit) -> None:
    one, other = cloud(1, 6), cloud(2, 6)
    with kit.rig() as rig:
        first = run(rig, [kit.prompt(one, text="a")])
        assert figures(rig) == (1, 0, 6)
        assert (
            run(rig, [kit.prompt(one, text="a"), kit.prompt(one, other, text="b"), kit.prompt(one, one)])[:1] == first
        )
        assert figures(rig) == (2, 4, 12)
        assert Points.runs == 2


def test_requests_of_one_step_share_the_rows_that_the_first_makes(kit: Kit) -> None:
    with kit.rig(max_num_batched_tokens=64, encoder_cache_bytes=0) as rig:
        answers = run(rig, [kit.prompt(cloud(1, 6), cloud(2, 3), text="x")] * 3)
        assert figures(rig) == (2, 4, 0)
    assert answers[0] == answers[1] == answers[2]


def test_forks_share_rows(kit: Kit) -> None:
    with kit.rig() as rig:
        rig.add(kit.prompt(cloud(1, 5)), SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True))
        rig.drain()
        assert figures(rig)[0] == 1


def test_without_a_cache_rows_go_with_the_last_position_that_needs_them(kit: Kit) -> None:
    with kit.rig(max_num_batched_tokens=4, encoder_cache_bytes=0) as rig:
        rig.add(kit.prompt(cloud(1, 6), cloud(2, 6)), greedy(2))
        kept = []
        while rig.engine.has_work:
            rig.engine.step()
            kept.append(figures(rig)[2])
        assert kept[:3] == [6, 6, 0]
        assert figures(rig)[:2] == (2, 0)
        run(rig, [kit.prompt(cloud(1, 6))])
        assert figures(rig)[:2] == (3, 0)


def test_who_ends_early_lets_go(kit: Kit) -> None:
    with kit.rig(max_num_batched_tokens=4, encoder_cache_bytes=0) as rig:
        request_id = rig.add(kit.prompt(cloud(1, 9)), greedy(2))
        rig.engine.step()
        assert figures(rig)[2] == 9
        rig.engine.abort(request_id)
        rig.add([1, 2, 3], greedy(1))
        rig.drain()
        assert figures(rig)[2] == 0


def test_the_least_recently_used_rows_go_first(kit: Kit) -> None:
    a, b, c = (kit.prompt(cloud(seed, 5)) for seed in (1, 2, 3))
    with kit.rig(encoder_cache_bytes=10 * ROW) as rig:
        for prompt in (a, b, a, c):
            run(rig, [prompt])
        assert figures(rig) == (3, 1, 10)
        run(rig, [a])
        assert figures(rig) == (3, 2, 10)
        run(rig, [b])
        assert figures(rig) == (4, 2, 10)


def test_rows_that_are_held_stay_beyond_the_budget() -> None:
    cache = EncoderCache(100)
    keys = [MediaKey("points", digest, 1) for digest in "abc"]
    for key in keys:
        cache.put(key, torch.zeros(1, 20))
        cache.hold(key)
    cache.hold(keys[0])
    cache.release(keys[0])
    assert all(key in cache for key in keys)
    assert cache.num_bytes == 240
    for key in keys:
        cache.release(key)
    assert [key in cache for key in keys] == [False, False, True]
    assert cache.num_bytes == 80
    cache.clear()
    assert (cache.num_bytes, keys[2] in cache) == (0, False)


def test_a_step_that_fails_leaves_no_rows_behind(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    with kit.rig(max_num_batched_tokens=4) as rig:
        rig.add(kit.prompt(cloud(1, 9)), greedy(2))
        rig.engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(rig.engine._runner._executor, "hidden_states", lambda *args: 1 / 0)
            rig.engine.step()
        assert figures(rig)[2] == 0
        run(rig, [kit.prompt(cloud(1, 9))])


@pytest.mark.parametrize("settings", [{"encoder_cache_bytes": -1}, {"max_num_encoder_tokens": 0}])
def test_settings_that_cannot_be_are_refused(folder: Path, settings: dict[str, int]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} must be"):
        make_rig(folder, registry.load(None), **settings)


# --- what a tower is given ---------------------------------------------------------------------------


def test_a_stage_is_the_same_each_time_and_binds_adapters_once_for_equal_counts() -> None:
    asked: list[tuple[int, ...]] = []

    def bind(counts: Any) -> str:
        asked.append(tuple(counts))
        return "bound"

    call = TowerCall("cpu", bind)
    stage = call.context([4, 2])
    assert stage is call.context((4, 2))
    assert stage.adapters == "bound"
    assert stage.rows.lens_host.tolist() == [4, 2]
    windows = call.context([4, 2], [2, 2, 1, 1])
    assert windows is not stage
    assert windows.rows.query_starts.tolist() == [0, 2, 4, 5, 6]
    assert call.context([1, 1]) is not stage
    assert asked == [(4, 2), (1, 1)]
    assert TowerCall("cpu").context([3]).adapters is None
    with pytest.raises(AssertionError, match="runs of 3 tokens, but items of 4"):
        call.context([4], [3])
