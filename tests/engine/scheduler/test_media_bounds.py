"""Where chunks end in prompts whose media must be computed whole."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from scheduler_rig import Rig

from quire.engine.multimodal.media_bounds import align_to_media, trim_hits_to_media
from quire.errors import BadRequest
from quire.types import Media


def medium(start: int, length: int, digest: str = "p") -> Media:
    return Media(modality="image", start=start, length=length, digest=digest, tensors={})


@st.composite
def media(draw: st.DrawFn) -> tuple[Media, ...]:
    """Media one after another, some side by side."""
    found, free = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=5)):
        found.append(medium(free + gap, length))
        free += gap + length
    return tuple(found)


def inside(media: tuple[Media, ...], position: int) -> bool:
    return any(m.start < position < m.start + m.length for m in media)


@given(media(), st.integers(0, 40), st.integers(0, 20), st.integers(0, 20))
def test_a_chunk_never_ends_inside_a_medium_and_is_as_long_as_it_can_be(
    media: tuple[Media, ...], start: int, fair: int, spare: int
) -> None:
    room = fair + spare
    end = align_to_media(media, start, start + fair, room)
    assert end == start or not inside(media, end)
    assert start <= end <= start + room
    allowed = [at for at in range(start + 1, start + fair + 1) if not inside(media, at)]
    if allowed:
        assert end == allowed[-1]
    elif end > start:  # the medium that comes next, and no more
        assert end == min(m.start + m.length for m in media if m.start + m.length > start)
    else:
        assert fair == 0 or all(inside(media, at) for at in range(start + 1, start + room + 1))


@given(media(), st.integers(0, 12), st.integers(1, 5))
def test_pages_that_are_found_apart_from_media_cut_none(
    media: tuple[Media, ...], num_found: int, page_size: int
) -> None:
    kept = trim_hits_to_media(media, num_found, page_size)
    assert 0 <= kept <= num_found
    assert not inside(media, kept * page_size)
    assert all(inside(media, pages * page_size) for pages in range(kept + 1, num_found + 1))


# --- in plans ------------------------------------------------------------------------------------------


def chunks(rig: Rig) -> list[dict[int, tuple[int, int]]]:
    """Of each step that computes anything, begin and end of each seq's chunk."""
    steps = [{c.seq_id: (c.start, c.start + len(c.token_ids)) for c in plan.chunks} for plan in rig.plans]
    return list(filter(None, steps))


def test_a_chunk_stops_before_a_picture_that_does_not_fit_and_then_takes_it_whole() -> None:
    rig = Rig(max_num_batched_tokens=8, bidirectional_media=True)
    rig.add(range(20), {"max_tokens": 1}, media=(medium(3, 7), medium(10, 4)))
    rig.run()
    assert [step[0] for step in chunks(rig)] == [(0, 3), (3, 10), (10, 18), (18, 20)]


def test_without_the_rule_chunks_end_anywhere() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.add(range(20), {"max_tokens": 1}, media=(medium(3, 7),))
    rig.run()
    assert [step[0] for step in chunks(rig)] == [(0, 8), (8, 16), (16, 20)]


def test_a_picture_is_taken_whole_even_if_the_caller_allows_fewer_tokens() -> None:
    rig = Rig(max_num_batched_tokens=16, bidirectional_media=True)
    rig.add(range(20), {"max_tokens": 1}, media=(medium(3, 7),))
    while rig.scheduler.has_work:
        rig.step(max_tokens=2)
    assert [step[0] for step in chunks(rig)][:3] == [(0, 2), (2, 3), (3, 10)]


def test_a_picture_as_large_as_a_step_is_computed_although_others_generate() -> None:
    rig = Rig(max_num_batched_tokens=8, bidirectional_media=True)
    rig.add([1], {"max_tokens": 40})
    rig.add([2], {"max_tokens": 40})
    rig.step()
    rig.add(range(12), {"max_tokens": 1}, media=(medium(2, 8),))
    for _ in range(4):
        rig.step()
    assert [step.get(2) for step in chunks(rig)] == [None, (0, 2), None, (2, 10), (10, 12)]
    assert rig.counts().keys() == {0, 1, 2}


def test_a_newcomer_waits_outside_while_there_is_no_room_for_the_picture_it_begins_with() -> None:
    rig = Rig(max_num_batched_tokens=8, bidirectional_media=True)
    rig.add([1], {"max_tokens": 3})
    rig.step()
    rig.add(range(12), {"max_tokens": 1}, media=(medium(0, 8),))
    rig.run()
    assert [step.get(1) for step in chunks(rig)] == [None, None, None, (0, 8), (8, 12)]


def test_what_is_found_of_a_picture_is_not_computed_again_and_the_rest_is_at_once() -> None:
    rig = Rig(max_num_batched_tokens=12, bidirectional_media=True)
    picture = (medium(2, 12),)
    for last in (90, 91):
        rig.add([*range(15), last], {"max_tokens": 1}, media=picture)
        rig.run()
    assert [step[1] for step in chunks(rig) if 1 in step] == [(12, 16)]


def test_a_picture_is_computed_in_one_piece_if_that_is_asked_for_whatever_is_found_of_it() -> None:
    rig = Rig(max_num_batched_tokens=12, bidirectional_media=True, media_in_one=True)
    picture = (medium(6, 8),)
    for last in (90, 91):
        rig.add([*range(15), last], {"max_tokens": 1}, media=picture)
        rig.run()
    assert [step[1] for step in chunks(rig) if 1 in step] == [(4, 16)]


def test_several_answers_to_a_prompt_that_ends_with_a_picture_each_compute_it() -> None:
    rig = Rig(caching=False, bidirectional_media=True)
    rig.add(range(12), {"n": 3, "max_tokens": 2}, media=(medium(5, 7),))
    rig.run()
    assert chunks(rig)[:2] == [{0: (0, 5)}, {0: (5, 12), 1: (5, 12), 2: (5, 12)}]
    assert [len(rig.output("r0", index)) for index in range(3)] == [2, 2, 2]


def test_several_answers_begin_inside_the_picture_if_so_much_of_it_is_found() -> None:
    rig = Rig(bidirectional_media=True)
    for n in (1, 3):
        rig.add(range(12), {"n": n, "max_tokens": 2}, media=(medium(2, 10),))
        rig.run()
    steps = [step for step in chunks(rig) if 1 in step]
    assert steps[0] == {1: (8, 12), 2: (8, 12), 3: (8, 12)}


def test_a_picture_that_no_step_has_room_for_is_refused() -> None:
    rig = Rig(max_num_batched_tokens=8, bidirectional_media=True)
    with pytest.raises(BadRequest, match=r"a medium of 9 tokens, .* at most --max-num-batched-tokens \(8\) can be"):
        rig.add(range(20), media=(medium(1, 2), medium(3, 9)))
    assert not rig.scheduler.has_work
    Rig(max_num_batched_tokens=8).add(range(20), media=(medium(1, 2), medium(3, 9)))
