"""PagePool and page keys."""

import random

import pytest
from hypothesis import given, strategies as st
from scheduler_invariants import check_pool

from quire.engine.scheduler.page_pool import PagePool, hash_page, hash_root
from quire.types import AdapterRef, Media, WeightedAdapter


def picture(start, length, digest):
    return Media(modality="image", start=start, length=length, digest=digest, tensors={})


def test_taking_and_releasing_gives_every_page_once():
    pool = PagePool(4, 16)
    pages = pool.allocate(4)
    assert sorted(pages) == [0, 1, 2, 3]
    assert (pool.available, pool.num_used) == (0, 4)
    pool.free(pages)
    assert (pool.available, pool.num_used, pool.num_idle) == (4, 0, 0)
    check_pool(pool, [])


def test_more_than_there_is_cannot_be_taken():
    with pytest.raises(AssertionError, match="3 pages wanted, 2 available"):
        PagePool(2, 16).allocate(3)


def test_a_page_is_released_no_more_often_than_it_is_held():
    pool = PagePool(2, 16)
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(AssertionError, match="has no reference"):
        pool.free(pages)


def test_a_keyed_page_outlives_its_holder_and_is_found_again():
    pool = PagePool(2, 16)
    (page,) = pool.allocate(1)
    pool.register(page, b"k")
    pool.free([page])
    assert (pool.num_idle, pool.available) == (1, 2)
    found = pool.lookup(b"k")
    pool.incref([found])
    assert (found, pool.num_idle, pool.refs[page]) == (page, 0, 1)
    check_pool(pool, [[page]])


def test_free_pages_go_before_cached_ones_and_the_least_recently_used_of_these():
    pool = PagePool(3, 16)
    first, second, third = pool.allocate(3)
    pool.register(first, b"1")
    pool.register(second, b"2")
    for page in (first, second, third):
        pool.free([page])
    pool.incref([first])
    pool.free([first])  # used again: now the most recent
    assert pool.allocate(1) == [third]
    assert pool.allocate(1) == [second]
    assert (pool.lookup(b"1"), pool.lookup(b"2")) == (first, None)


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    pool = PagePool(3, 16)
    table = pool.allocate(3)
    for page, key in zip(table, (b"1", b"2", b"3"), strict=True):
        pool.register(page, key)
    pool.free(table)
    assert [pool.allocate(1)[0] for _ in range(3)] == table[::-1]


def test_an_equal_page_that_is_there_already_stays_the_one_found():
    pool = PagePool(2, 16)
    first, second = pool.allocate(2)
    pool.register(first, b"k")
    pool.register(second, b"k")
    assert pool.lookup(b"k") == first
    pool.free([second])
    assert pool.num_idle == 0


def test_without_caching_nothing_is_found():
    pool = PagePool(1, 16, caching=False)
    pages = pool.allocate(1)
    pool.register(pages[0], b"k")
    pool.free(pages)
    assert (pool.lookup(b"k"), pool.num_idle) == (None, 0)


def test_forgetting_frees_idle_pages_and_hides_those_in_use():
    pool = PagePool(3, 16)
    first, second = pool.allocate(2)
    pool.register(first, b"1")
    pool.register(second, b"2")
    pool.free([first])
    assert pool.reset() == 1
    assert (pool.lookup(b"1"), pool.lookup(b"2")) == (None, None)
    check_pool(pool, [[second]])
    pool.free([second])
    assert pool.available == 3
    check_pool(pool, [])


@given(st.integers(1, 8), st.integers(0, 2**32))
def test_every_invariant_holds_after_any_sequence_of_operations(num_pages, seed):
    choose, pool, tables = random.Random(seed), PagePool(num_pages, 4), []
    for _ in range(60):
        match choose.choice(["take", "release", "share", "publish", "find"]):
            case "take":
                tables.append(pool.allocate(choose.randint(0, pool.available)))
            case "release" if tables:
                pool.free(tables.pop(choose.randrange(len(tables))))
            case "share" if tables:
                table = list(choose.choice(tables))
                pool.incref(table)
                tables.append(table)
            case "publish" if any(tables):
                pool.register(choose.choice([page for table in tables for page in table]), bytes([choose.randrange(9)]))
            case "find":
                page = pool.lookup(bytes([choose.randrange(9)]))
                if page is not None:
                    pool.incref([page])
                    tables.append([page])
        check_pool(pool, tables)


def test_everything_that_changes_k_or_v_changes_the_key():
    refs = [AdapterRef(name=n, revision=r) for n in ("a", "b", "") for r in (0, 1)]
    alone = [(WeightedAdapter(ref, weight),) for ref in refs for weight in (1.0, 0.5, -0.5)]
    pairs = [(one, WeightedAdapter(refs[0], weight)) for (one,) in alone[3:] for weight in (1.0, 0.25)]
    roots = [hash_root(adapters, salt) for adapters in [(), *alone, *pairs] for salt in (None, "", "x", "ab")]
    assert len(set(roots)) == len(roots)
    cases = [
        (roots[0], [1, 2], 0, ()),
        (roots[1], [1, 2], 0, ()),
        (roots[0], [1, 3], 0, ()),
        (roots[0], [2, 1], 0, ()),
        (roots[0], [1], 0, ()),
        (roots[0], [1, 2], 0, (picture(0, 2, "p"),)),
        (roots[0], [1, 2], 0, (picture(0, 2, "q"),)),
        (roots[0], [1, 2], 0, (picture(1, 2, "p"),)),
        (roots[0], [1, 2], 0, (picture(0, 3, "p"),)),
        (roots[0], [1, 2], 0, (picture(0, 1, "p"), picture(1, 1, "p"))),
    ]
    keys = [hash_page(*case) for case in cases]
    assert len(set(keys)) == len(keys)


def test_an_adapter_and_a_salt_cannot_be_mistaken_for_one_another():
    def key(salt, *names):
        return hash_root([WeightedAdapter(AdapterRef(name=name)) for name in names], salt)

    assert key(None, "x") != key("0:1.0:x")
    assert key("z", "xy") != key("yz", "x")
    assert key(None, "x", "y") != key("0:1.0:y", "x")
    assert key(None, "x", "y") != key(None, "x0:1.0:y")


def test_media_that_do_not_touch_the_page_are_not_in_its_key():
    plain = hash_page(b"root", [1, 2, 3, 4], 4)
    assert hash_page(b"root", [1, 2, 3, 4], 4, (picture(0, 4, "p"), picture(8, 2, "q"))) == plain
    assert hash_page(b"root", [1, 2, 3, 4], 4, (picture(0, 5, "p"),)) != plain
    assert hash_page(b"root", [1, 2, 3, 4], 4, (picture(7, 2, "p"),)) != plain
