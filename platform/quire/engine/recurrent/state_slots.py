"""The state slots of sequences and of checkpoints, and the moves between them that the next plan carries.

All changes of `Seq.state_slot` and `Seq.host_slot` happen here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.engine.scheduler.page_pool import PagePool
from quire.types import StateMoves, StateStats

if TYPE_CHECKING:
    from quire.engine.memory.state_budget import CacheSizes
    from quire.engine.scheduler.seq import Seq
    from quire.settings.model_config import ModelConfig


@dataclass(slots=True)
class _Taken:
    """A checkpoint of the first `end` tokens that a plan takes: a copy of `slot` in `copy`, once its chunk is computed.

    page_hash: of the page that ends there; None while a token of it is not known.
    """

    seq: Seq
    slot: int
    copy: int
    end: int
    page_hash: bytes | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """The state before a chunk with drafts: `slot` holds that after the first `computed` tokens."""

    slot: int
    computed: int
    num_drafts: int


@dataclass(slots=True, eq=False)
class StateSlots:
    """Slots as pages of a `PagePool`: those of seqs are referenced, idle ones hold checkpoints by the hash of a page.

    pool: a slot for each seq that may run, and more for checkpoints. host_pool: slots in host memory for swapped seqs.
    page_size: of the KV pages. interval: pages between two checkpoints of one seq. num_checkpoints: those that plans
    without a result may take, so that a slot is left for every seq that may run.

    Of seqs by id: the pages that it shares with the cache or with waiting seqs (_branches), and the ends of chunks
    where it takes checkpoints, with their hashes (_goals). Each goal is a promise to other seqs: _promised has its page
    and its seq. _kept: states before the step in flight; _settling: of the
    step that is committed. _sources: by slot, what is copied into it before the next step; None for zeros. Checkpoints
    of the plan that is made: _taken; of plans without a result, by the slot of the copy: _copied.
    """

    pool: PagePool
    host_pool: PagePool
    page_size: int
    interval: int
    num_checkpoints: int
    _promised: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _goals: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    _branches: dict[int, set[int]] = field(default_factory=dict)
    _kept: dict[int, _Kept] = field(default_factory=dict)
    _settling: dict[int, _Kept] = field(default_factory=dict)
    _sources: dict[int, int | None] = field(default_factory=dict)
    _swaps_out: list[tuple[int, int]] = field(default_factory=list)
    _swaps_in: list[tuple[int, int]] = field(default_factory=list)
    _taken: list[_Taken] = field(default_factory=list)
    _copied: dict[int, _Taken] = field(default_factory=dict)
    _num_checkpoints: int = 0
    _num_hits: int = 0

    @classmethod
    def from_sizes(cls, sizes: CacheSizes, config: ModelConfig) -> StateSlots | None:
        """Slots for a model; None if it has no state."""
        if not sizes.num_state_slots:
            return None
        return cls(
            PagePool(sizes.num_state_slots, 1, config.enable_prefix_caching and sizes.num_checkpoints > 0),
            PagePool(sizes.num_host_slots, 1, caching=False),
            config.page_size,
            sizes.checkpoint_interval,
            sizes.num_checkpoints,
        )

    # --- the prefix cache --------------------------------------------------------------------------------

    def trim(self, seq: Seq, hits: list[int]) -> list[int]:
        """The longest part of these cached pages at whose end there is a checkpoint."""
        self._branches[seq.id] = {len(hits)}
        for i in range(len(hits), 0, -1):
            if self.pool.lookup(seq.page_hash(i - 1, self.page_size)) is not None:
                return hits[:i]
        return []

    def share(self, seq: Seq, others: Iterable[Seq]) -> None:
        """Plan checkpoints where the tokens of waiting seqs part from those of a seq that will begin."""
        size, most = self.page_size, (seq.num_tokens - 1) // self.page_size
        for other in others if self.pool.caching else ():
            if other is seq:
                continue  # it waits too until it is admitted
            page, last = 0, min(most, (other.num_tokens - 1) // size)
            while page < last and seq.page_hash(page, size) == other.page_hash(page, size):
                page += 1
            self._branches.setdefault(seq.id, set()).add(page)

    def is_promised(self, seq: Seq, num_tokens: int) -> bool:
        """Whether a running seq will take a checkpoint that a waiting one can use for its first `num_tokens` tokens,
        and that is better than those there are.
        """
        if not self._promised:
            return False
        last, size = num_tokens // self.page_size, self.page_size
        pages = [p for h, (p, _) in self._promised.items() if p < last and seq.page_hash(p, size) == h]
        return bool(pages) and not any(
            self.pool.lookup(seq.page_hash(i, size)) is not None for i in range(max(pages), last)
        )

    def cut(self, seq: Seq, end: int) -> int:
        """The end of a chunk, moved from `end` to the seq's next boundary if that comes sooner."""
        goals = self._goals.get(seq.id)
        return min(end, goals[0][0]) if goals else end

    def take(self, seq: Seq, end: int) -> None:
        """Plan a checkpoint after the seq's chunk that ends at `end`, if that is a boundary and a slot can be had."""
        goals = self._goals.get(seq.id, ())
        while goals and goals[0][0] < end:  # passed, because media must not be cut
            self._withdraw(goals.pop(0)[1], seq.id)
        page, rest = divmod(end, self.page_size)
        page_hash: bytes | None = None
        if goals and goals[0][0] == end:
            page_hash = goals.pop(0)[1]
        elif rest or page % self.interval or not self.pool.caching:
            return
        elif end <= seq.num_tokens:
            page_hash = seq.page_hash(page - 1, self.page_size)
        is_there = page_hash is not None and self.pool.lookup(page_hash) is not None
        if is_there or len(self._taken) + len(self._copied) >= self.num_checkpoints:
            self._withdraw(page_hash, seq.id)
            return
        (copy,) = self.pool.allocate(1)
        self._taken.append(_Taken(seq, seq.state_slot, copy, end, page_hash))

    def commit(self, moves: StateMoves | None, failed: Container[int]) -> None:
        """Register the checkpoints that a computed plan took, except those of `failed` seqs; free kept states."""
        for _, copy in moves.checkpoints if moves is not None else ():
            taken = self._copied.pop(copy)
            seq, page_hash = taken.seq, taken.page_hash
            if page_hash is None and taken.end <= seq.num_tokens:
                page_hash = seq.page_hash(taken.end // self.page_size - 1, self.page_size)
            if page_hash is not None and seq.id not in failed:
                self._num_checkpoints += self.pool.register(copy, page_hash)
            self.pool.free((copy,))
            self._withdraw(page_hash, seq.id)
        for kept in self._kept.values():  # their slots hold the states until the moves of the next plan
            self.pool.free((kept.slot,))
        self._settling, self._kept = self._kept, {}

    def drop_taken(self) -> None:
        """Forget the checkpoints of plans whose steps failed, or are not computed."""
        self.drain_moves()
        moves = StateMoves(checkpoints=tuple((taken.slot, copy) for copy, taken in self._copied.items()))
        self.commit(moves, frozenset(taken.seq.id for taken in self._copied.values()))

    def _withdraw(self, page_hash: bytes | None, seq_id: int) -> None:
        if page_hash is not None and self._promised.get(page_hash, (0, None))[1] == seq_id:
            del self._promised[page_hash]

    # --- drafts ------------------------------------------------------------------------------------------

    def max_drafts(self, seq: Seq) -> int:
        """Most drafts of a seq whose chunk of all its tokens is planned.

        None if no slot is left to keep its state in, and where a checkpoint is taken; before the next one a draft less,
        so that a chunk ends there whether or not drafts are accepted.
        """
        is_taken = any(taken.seq is seq for taken in self._taken)
        if is_taken or not self.pool.available or seq.state_slot in {slot for _, slot in self._swaps_in}:
            return 0
        period = self.page_size * self.interval
        return period - 1 - seq.num_tokens % period if self.pool.caching else seq.max_len

    def keep(self, seq: Seq, num_drafts: int) -> None:
        """Keep the state that a seq has before its next chunk, which ends with drafts."""
        (slot,) = self.pool.allocate(1)
        self._sources[slot] = self._content(seq.state_slot)
        self._kept[seq.id] = _Kept(slot, seq.computed, num_drafts)

    def settle(self, seq: Seq, num_accepted: int) -> int | None:
        """Let the state go back if drafts of the chunk were rejected: returns how many tokens it has seen then."""
        kept = self._settling[seq.id]
        if num_accepted == kept.num_drafts:
            return None
        self._sources[seq.state_slot] = kept.slot
        return kept.computed

    # --- slots of sequences ------------------------------------------------------------------------------

    def begin(self, seq: Seq, num_hits: int) -> None:
        """Give a slot to a seq that begins behind `num_hits` cached pages, with the state at their end."""
        source = None
        if num_hits:
            source = self.pool.lookup(seq.page_hash(num_hits - 1, self.page_size))
            assert source is not None, "hits end at a checkpoint"
            self.pool.incref((source,))  # now the most recently used one
            self.pool.free((source,))
            self._num_hits += 1
        (seq.state_slot,) = self.pool.allocate(1)  # perhaps the checkpoint itself, if there is no other slot
        self._sources[seq.state_slot] = source
        if self.pool.caching:
            self._promise(seq, num_hits)

    def _promise(self, seq: Seq, num_hits: int) -> None:
        """Set the boundaries of a seq up to its last token but one."""
        last = (seq.num_tokens - 1) // self.page_size
        pages = {*self._branches.pop(seq.id, ()), last, *range(self.interval, last, self.interval)}
        goals = []
        for page in sorted(page for page in pages if page > num_hits):
            page_hash = seq.page_hash(page - 1, self.page_size)
            if page_hash not in self._promised and self.pool.lookup(page_hash) is None:
                self._promised[page_hash] = (page - 1, seq.id)
                goals.append((page * self.page_size, page_hash))
        if goals:
            self._goals[seq.id] = goals

    def fork(self, parent: Seq, child: Seq) -> None:
        """Give a slot to a child, which begins with the state that the parent has now."""
        (child.state_slot,) = self.pool.allocate(1)
        self._sources[child.state_slot] = self._content(parent.state_slot)

    def free(self, seq: Seq) -> None:
        """Take the slots of a seq away, on the device and in host memory."""
        self._branches.pop(seq.id, None)
        for _, page_hash in self._goals.pop(seq.id, ()):
            self._withdraw(page_hash, seq.id)
        if seq.state_slot >= 0:
            self.pool.free((seq.state_slot,))
            self._sources.pop(seq.state_slot, None)
        if seq.host_slot >= 0:
            self.host_pool.free((seq.host_slot,))
        seq.state_slot = seq.host_slot = -1

    def can_swap(self, seq: Seq) -> bool:
        """Whether a slot in host memory is left for the state of a running seq, and there is a state."""
        return self.host_pool.available > 0 and self._content(seq.state_slot) is not None

    def swap_out(self, seq: Seq) -> None:
        """Move the state to host memory."""
        source = self._content(seq.state_slot)
        assert source is not None, "a seq without a state is computed again"
        (host_slot,) = self.host_pool.allocate(1)
        self._swaps_out.append((source, host_slot))
        self.free(seq)
        seq.host_slot = host_slot

    def swap_in(self, seq: Seq) -> None:
        """Bring the state back from host memory."""
        host_slot = seq.host_slot
        self.free(seq)
        (seq.state_slot,) = self.pool.allocate(1)
        self._swaps_in.append((host_slot, seq.state_slot))
        if self.pool.caching:
            self._promise(seq, seq.computed // self.page_size)

    def stats(self) -> StateStats:
        """Slots now, and totals since start."""
        return StateStats(
            num_slots=self.pool.num_pages,
            num_slots_used=self.pool.num_used,
            num_checkpoints=self.pool.num_idle,
            num_checkpoints_total=self._num_checkpoints,
            num_hits_total=self._num_hits,
        )

    def _content(self, slot: int) -> int | None:
        """The slot whose content at the beginning of the next step is that of `slot` after the moves planned so far."""
        return self._sources.get(slot, slot)

    def drain_moves(self) -> StateMoves | None:
        """The moves of the next plan, None if there are none; `commit` registers the checkpoints among them."""
        moves = StateMoves(
            copies=tuple((a, b) for b, a in self._sources.items() if a is not None and a != b),
            cleared=tuple(b for b, a in self._sources.items() if a is None),
            swaps_out=tuple(self._swaps_out),
            swaps_in=tuple(self._swaps_in),
            checkpoints=tuple((taken.slot, taken.copy) for taken in self._taken),
        )
        self._copied |= {taken.copy: taken for taken in self._taken}
        self._sources, self._swaps_out, self._swaps_in, self._taken = {}, [], [], []
        return moves if moves != StateMoves() else None
