"""What the prefix cache reports: a listener of the events knows exactly what is cached."""

import random

import pytest
from kv_cache_view import KvCacheView
from scheduler_rig import Rig

from quire.engine.kv_events.page_log import PageLog
from quire.engine.kv_events.sender import merged
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, Media, WeightedAdapter
from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored


class LoggedRig(Rig):
    """A scheduler whose page pool reports to a list."""

    def __init__(self, max_events=10**6, **kinds):
        super().__init__(**kinds)
        self.events, self.max_events = [], max_events
        self.pool.log = PageLog("m", self.pool.page_size, self.put)

    def put(self, model, event):
        assert model == "m"
        if len(self.events) >= self.max_events:
            return False
        self.events.append(event)
        return True

    def cached(self):
        """Hashes of the pages in the pool, as events have them."""
        return {int.from_bytes(page_hash[-8:], "big") for page_hash in self.pool._page_of}


@pytest.mark.parametrize("seed", range(8))
def test_who_follows_the_events_knows_what_is_cached(seed):
    choose = random.Random(seed)
    rig = LoggedRig(num_pages=choose.choice([12, 30]), host_pages=choose.choice([0, 10]), max_num_batched_tokens=24)
    view, texts = KvCacheView(), {}
    for turn in range(120):
        prompt = [choose.randint(0, 1)] * choose.choice([4, 8]) + [choose.randint(1, 3) for _ in range(9)]
        rig.add(prompt, SamplingParams(max_tokens=choose.randint(1, 9), ignore_eos=True, n=choose.choice([1, 1, 2])))
        for _ in range(choose.randint(1, 4)):
            rig.step()
        if turn % 50 == 49:
            rig.scheduler.reset_prefix_cache()
        view.apply(merged(rig.events) if choose.random() < 0.7 else rig.events)
        rig.events.clear()
        assert set(view.blocks) == rig.cached()
        for number in view.blocks:
            if all(parent is None or parent in view.blocks for parent, *_ in view.blocks.values()):
                assert texts.setdefault(number, view.text(number)) == view.text(number)
    assert view.num_events > 100


def test_a_prompt_is_one_event_and_a_continued_one_names_its_parent():
    rig = LoggedRig()
    rig.add([1, 2, 3, 4, 5, 6, 7, 8, 9])
    rig.run()
    clear, stored, *rest = merged(rig.events)
    assert clear == AllBlocksCleared()
    assert stored.token_ids[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (stored.parent_block_hash, stored.block_size, stored.medium, stored.lora_name) == (None, 4, "GPU", None)
    rig.events.clear()
    rig.add([1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 7, 7])
    rig.run()
    (more,) = merged(rig.events)
    assert (more.parent_block_hash, more.token_ids[:4]) == (stored.block_hashes[1], [7, 7, 7, 7])
    assert not rest or rest[0].parent_block_hash == stored.block_hashes[-1]


def test_media_adapters_and_salt_are_in_the_keys_of_the_blocks_that_they_touch():
    rig = LoggedRig()
    picture = Media(modality="image", start=2, length=4, digest="d", tensors={})
    adapters = (WeightedAdapter(AdapterRef(name="a")), WeightedAdapter(AdapterRef(name="b"), 0.5))
    rig.add([1] * 13, {"max_tokens": 1}, media=(picture,), adapters=adapters, cache_salt="s")
    rig.run()
    _, stored = merged(rig.events)
    assert stored.lora_name == "a+b:0.5"
    assert stored.extra_keys == [[("d", 2), "a+b:0.5", "s"], [("d", -2), "a+b:0.5"], ["a+b:0.5"]]
    rig.add([1] * 13, {"max_tokens": 1})
    rig.run()
    assert merged(rig.events)[-1].extra_keys is None
    assert stored.lora_id is not None


def test_after_events_were_dropped_the_cache_is_reported_as_empty_before_new_ones():
    rig = LoggedRig(max_events=3)
    rig.add([1] * 30)
    rig.run()
    assert [type(event) for event in rig.events] == [AllBlocksCleared, BlockStored, BlockStored]
    rig.events.clear()
    rig.max_events = 10**6
    rig.add([2] * 9)
    rig.run()
    view = KvCacheView()
    view.apply(rig.events)
    assert isinstance(rig.events[0], AllBlocksCleared)
    assert 0 < len(view.blocks) < len(rig.cached())
    assert set(view.blocks) < rig.cached()


def test_removals_in_a_row_are_one_event():
    events = [BlockRemoved(block_hashes=[1]), BlockRemoved(block_hashes=[2]), AllBlocksCleared(), AllBlocksCleared()]
    assert merged(events) == [BlockRemoved(block_hashes=[1, 2]), AllBlocksCleared()]
