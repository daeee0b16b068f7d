"""The invariants of a scheduler that hold between steps."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from quire.engine.recurrent.state_slots import StateSlots
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.scheduler import Scheduler
from quire.engine.scheduler.seq import Seq, Status


def check_scheduler(scheduler: Scheduler) -> None:
    """Assert all of them."""
    state, tables, size = scheduler._state, scheduler._tables, scheduler._tables.pool.page_size
    seqs = list(state.seqs.values())
    check_pool(tables.pool, [seq.pages for seq in seqs])
    check_pool(tables.host_pool, [seq.host_pages for seq in seqs])
    if tables.states is not None:
        check_states(tables.states, seqs)
    for seq in seqs:
        assert seq.computed <= len(seq.tokens), "computed tokens are tokens"
        planned = seq.computed + seq.in_flight
        assert len(seq.pages) + len(seq.host_pages) == tables.pool.pages_for(planned), "a page table fits"
        assert not seq.in_flight or seq.status is Status.RUNNING, "seqs in flight run"
        assert not (seq.pages and seq.host_pages), "pages are on the device or in host memory"
        assert seq.num_registered <= min(planned, len(seq.tokens)) // size, "only full pages are registered"
        assert seq.in_runner <= (seq.status is Status.RUNNING), "only running seqs have a row in the runner"
        assert seq.group.seqs[seq.index] is seq, "a group lists its seqs"
        assert state.groups[seq.group.request.id] is seq.group, "the request of a seq is registered"
    queued = [*state.running.values(), *state.waiting, *state.swapped]
    paused = [seq for seq in seqs if seq.status is Status.PAUSED]
    assert sorted(s.id for s in [*queued, *paused]) == sorted(state.seqs), "each seq is in one queue"
    assert len(state.running) <= scheduler._limits.max_num_seqs, "no more than max_num_seqs run"
    counted = Counter(seq.client for seq in state.running.values())
    assert state.clients.places.num_running == counted, "running seqs are counted by client"
    assert all(seq.status is Status.RUNNING for seq in state.running.values()), "running seqs run"
    assert all(group.seqs for group in state.groups.values()), "a live request has a live seq"
    idle = [seq for seq in [*state.waiting, *paused] if seq.pages or seq.host_pages]
    assert not idle, "waiting seqs hold no pages"


def check_states(states: StateSlots, seqs: Sequence[Seq]) -> None:
    """Assert that running seqs own a slot each, swapped ones a host slot, and that running seqs keep promises."""
    running = {seq.id for seq in seqs if seq.status is Status.RUNNING}
    in_plans = [*states._copied, *(kept.slot for kept in states._kept.values())]
    check_pool(states.pool, [in_plans, *([seq.state_slot] for seq in seqs if seq.state_slot >= 0)])
    check_pool(states.host_pool, [[seq.host_slot] for seq in seqs if seq.host_slot >= 0])
    for seq in seqs:
        assert (seq.state_slot >= 0) == (seq.id in running), "a seq has a slot as long as it runs"
        assert (seq.host_slot >= 0) == (seq.status is Status.SWAPPED), "a seq has a host slot as long as it is swapped"
    goals = {(page_hash, seq_id) for seq_id, ends in states._goals.items() for _, page_hash in ends}
    promised = {(page_hash, seq_id) for page_hash, (_, seq_id) in states._promised.items()}
    copied = {(taken.page_hash, taken.seq.id) for taken in states._copied.values()}
    assert goals <= promised <= goals | copied, "promises are goals, or are being computed"
    assert running >= states._goals.keys(), "running seqs have boundaries"
    assert {seq.id for seq in seqs} >= states._branches.keys(), "nothing is kept of ended seqs"
    assert not states._taken, "every checkpoint is in a plan"


def check_pool(pool: PagePool, tables: Iterable[Sequence[int]]) -> None:
    """Assert every invariant, given the page tables of all sequences that hold pages here."""
    held, free, idle, hash_of = Counter(chain.from_iterable(tables)), set(pool._free), pool._idle.keys(), pool._hash_of
    refs = [0] * len(pool.refs)
    for page, count in held.items():
        refs[page] = count
    assert pool.refs == refs, "references = tables listing a page"
    assert len(free) == len(pool._free), "a page is free once"
    num_pages = pool.num_pages + getattr(pool, "num_over", 0)
    assert len(free) + len(idle) + len(held) == num_pages, "free + idle + held = all pages"
    assert held.keys().isdisjoint(free | idle), "a held page is neither free nor idle"
    assert free.isdisjoint(idle), "an idle page is not free"
    registered = set(pool._page_of.values())
    assert all(hash_of[page] == page_hash for page_hash, page in pool._page_of.items()), "hashes and pages agree"
    assert len(registered) == len(pool._page_of) == len(hash_of) - hash_of.count(None), "a page has one hash"
    assert idle <= registered, "an idle page is registered"
    assert registered.isdisjoint(free), "a free page is not"
