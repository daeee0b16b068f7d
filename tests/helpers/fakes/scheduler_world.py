"""A scheduler in a tiny pool under random load, with a pretend runner and what each request must get in the end."""

import random
from collections import deque
from dataclasses import dataclass

from fake_runner import VOCAB, JumpingRunner, alone, draw, entries, logprob, splitmix64
from scheduler_invariants import check_scheduler

from quire.engine.recurrent.state_slots import StateSlots
from quire.engine.scheduler.candidates import Admission
from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.scheduler import Scheduler
from quire.errors import BadRequest, Overloaded
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Context, Draft
from quire.types import (
    AdapterRef,
    Media,
    Plan,
    Prompt,
    Request,
    StepResult,
    WeightedAdapter,
    background,
    in_background,
)
from quire_plugins.policies import ByPriority, FirstComeFirstServed

BASE_SEED = 5
BEHIND = background("a")
MAX_STEPS = 50_000
MAX_FORKS = 4
"""Outputs of a request that begin in the step that admits it, beside the first."""


class Contrary:
    """Keys that look random and contradict each other: the worst a policy may do within its contract."""

    def admit_key(self, seq):
        return splitmix64(seq.arrival * 7 + seq.num_tokens)

    def victim_key(self, seq):
        return splitmix64(seq.arrival * 13 + seq.num_tokens)


POLICIES = {
    "fcfs": FirstComeFirstServed(Context()),
    "priority": ByPriority(Context()),
    "contrary": Contrary(),
}


@dataclass
class Received:
    """What the deltas of one seq said."""

    token_ids: list
    finish_reason: str | None = None


class World:
    """A scheduler in a tiny pool with its runner, and what each request must get in the end.

    caches_states: each seq has a state, and the prefix cache keeps states too; else it is drawn.
    """

    def __init__(self, choose: random.Random, caches_states: bool = False) -> None:
        self.choose = choose
        self.page_size, self.num_pages = choose.randint(1, 5), choose.randint(6, 24)
        host_pages, bidirectional_media = choose.choice([0, 0, 5, 12, 40]), choose.random() < 0.4
        self.limits = SchedulerLimits(
            max_model_len=choose.randint(8, 50),
            max_num_seqs=choose.randint(1, 6),
            max_num_batched_tokens=choose.randint(1, 20),
            max_num_queued_reqs=choose.choice([3, 50]),
            chunked_prefill=choose.random() < 0.8,
            preemption=choose.choice(["auto", "recompute", "swap"]),
            eos_ids=frozenset({0} if choose.random() < 0.8 else ()),
            seed=BASE_SEED,
            bidirectional_media=bidirectional_media,
            media_in_one=bidirectional_media and choose.random() < 0.4,
            num_divisions=choose.choice([1, 1, 2, 3]),
        )
        self.blocked: set[str] = set()
        caching = caches_states or choose.random() < 0.7
        self.in_flight: deque[tuple[Plan, StepResult]] = deque()
        ahead = [] if caches_states else [(2, True), (3, True), (3, False)]
        self.most, self.knows_samples = choose.choice([(1, False), (1, False), *ahead])
        """Plans in flight, and whether a plan may need tokens that the one before it samples."""
        with_states = caches_states or choose.random() < 0.7
        self.states = self.state_slots(caching, host_pages) if with_states else None
        self.scheduler = Scheduler(
            PagePool(self.num_pages, self.page_size, caching),
            choose.choice(list(POLICIES.values())),
            self.limits,
            PagePool(host_pages, self.page_size, caching=False) if host_pages else None,
            try_admit=lambda request: Admission.WAIT if request.id in self.blocked else Admission.READY,
            states=self.states,
        )
        self.runner = JumpingRunner(
            self.num_pages,
            self.page_size,
            host_pages,
            self.limits.max_num_seqs,
            self.limits.max_num_batched_tokens,
            self.limits.bidirectional_media,
            self.limits.media_in_one,
            self.states.pool.num_pages if self.states else 0,
            self.states.host_pool.num_pages if self.states else 0,
        )
        self.clients = choose.choice(
            [[""], ["a", "b"], ["a", "a", "a", "b", "c"], ["a", BEHIND], ["a", "b", BEHIND, background("d")]]
        )
        self.prefixes = [[choose.randrange(VOCAB) for _ in range(20)] for _ in range(3)]
        self.accepted: dict[str, tuple[Request, int]] = {}
        self.reported: dict[tuple[str, int], Received] = {}
        self.num_requests = 0
        self.drafting = 0 if self.states and self.most > 1 else choose.choice([0, 0.3, 0.8, 1])
        """How often a draft is right; 0: none are proposed. Steps with drafts do not overlap."""

    def state_slots(self, caching: bool, host_pages: int) -> StateSlots:
        """Slots for as many seqs as may run and perhaps for checkpoints."""
        num_checkpoints = self.choose.choice([0, 1, 2, 5, 20])
        num_slots = self.limits.max_num_seqs + num_checkpoints
        num_host_slots = min(host_pages, self.choose.randint(1, 6))
        return StateSlots(
            PagePool(num_slots, 1, caching and num_checkpoints > 0),
            PagePool(num_host_slots, 1, caching=False),
            self.page_size,
            interval=self.choose.choice([1, 2, 3, 100]),
            num_checkpoints=num_checkpoints,
        )

    def params(self):
        pick = self.choose.choice
        if self.choose.random() < 0.2:
            return BeamSearchParams(
                beam_width=self.choose.randint(1, 4),
                max_tokens=self.choose.randint(1, 9),
                ignore_eos=pick([True, False]),
                length_penalty=pick([1.0, 0.0, -1.0, 2.0]),
            )
        return SamplingParams(
            n=pick([1, 1, 1, 2, 3, 5]),
            seed=pick([None, 3]),
            max_tokens=pick([None, 0, 1, 5, 12]),
            ignore_eos=pick([True, False]),
            logprobs=pick([None, 1]),
            prompt_logprobs=pick([None, None, 0]),
            stop_token_ids=pick([None, [3]]),
        )

    def add(self) -> None:
        pick, self.num_requests = self.choose.choice, self.num_requests + 1
        tail = [self.choose.randrange(VOCAB) for _ in range(self.choose.randint(0, 4))]
        tokens = (*pick(self.prefixes)[: self.choose.randint(0, 20)], *tail)
        request = Request(
            id=f"r{self.num_requests}",
            prompt=Prompt(token_ids=tokens, media=pick([(), (), self.media(len(tokens))])),
            params=self.params(),
            priority=self.choose.randint(0, 2),
            cache_salt=pick([None, None, "s"]),
            client=pick(self.clients),
            adapters=pick(
                [(), (), (WeightedAdapter(AdapterRef(name="a")),), (WeightedAdapter(AdapterRef(name="a", revision=1)),)]
            ),
        )
        try:
            self.scheduler.add(request)
        except (BadRequest, Overloaded):
            return
        own = request.params.seed if isinstance(request.params, SamplingParams) else None
        self.accepted[request.id] = request, BASE_SEED + len(self.accepted) if own is None else own

    def media(self, prompt_len: int) -> tuple[Media, ...]:
        """Media within a prompt, perhaps at its beginning or its end, perhaps side by side."""
        media, free = [], self.choose.choice([0, self.choose.randint(0, 8)])
        while free < prompt_len and len(media) < 3:
            length = self.choose.randint(1, min(7, prompt_len - free))
            digest = self.choose.choice("pq")
            media.append(Media(modality="image", start=free, length=length, digest=digest, tensors={}))
            free += length + self.choose.choice([0, self.choose.randint(0, 5)])
        return tuple(media)

    def abort(self) -> None:
        if self.accepted:
            self.hear(self.scheduler.abort(self.choose.choice(list(self.accepted)), self.choose.choice([None, 0, 1])))

    def block(self) -> None:
        self.blocked = set(self.choose.sample(list(self.accepted), min(len(self.accepted), 3)))

    def step(self, max_tokens: int | None = None, abort: bool = False) -> None:
        """Launch a plan, unless one has to be committed first; then commit those that the draw says."""
        if not self.in_flight or (len(self.in_flight) < self.most and self.may_follow(*self.in_flight[-1])):
            self.launch(max_tokens)
        if abort:
            self.abort()
        while len(self.in_flight) == self.most or (self.in_flight and self.choose.random() < 0.3):
            self.hear(self.scheduler.commit(*self.in_flight.popleft()))
            check_scheduler(self.scheduler)

    def may_follow(self, plan: Plan, result: StepResult) -> bool:
        """Whether another plan may be made before this result is known."""
        plain = all(not (s.candidates or s.jump_forward_ids) for s in result.samples.values()) and not result.accepted
        return (plain or not self.knows_samples) and not result.lost

    def launch(self, max_tokens: int | None) -> None:
        max_background, is_first = self.choose.randint(0, 3), not self.in_flight
        drafts = self.drafts() if is_first else {}
        plan = self.scheduler.plan(max_tokens, max_background, drafts, ahead=self.knows_samples)
        if plan.is_empty and not is_first:
            return
        may_be_more = not self.limits.chunked_prefill or self.limits.bidirectional_media
        assert max_tokens is None or plan.num_tokens <= max_tokens or may_be_more
        seqs = self.scheduler._state.seqs
        behind = sum(len(chunk.token_ids) for chunk in plan.chunks if in_background(seqs[chunk.seq_id].client))
        if 0 < behind < plan.num_tokens and not may_be_more:
            assert behind <= max_background + MAX_FORKS
        unfinished = any(not self.finished(request) for request, _ in self.accepted.values())
        assert plan.chunks or self.blocked or not unfinished or not is_first, "no progress"
        self.runner.losing = self.states is not None and self.choose.random() < 0.01
        self.in_flight.append((plan, self.runner.run(plan)))

    def drafts(self) -> dict[int, Draft]:
        """Up to five drafts for some of the seqs that may have them, of which each is right or not."""
        found = {}
        for seq in self.scheduler.generating() if self.drafting else ():
            request, tokens = seq.group.request, list(seq.tokens)
            for _ in range(self.choose.choice([0, 1, 2, 5])):
                right = draw(entries(request, tokens, request.adapters, request.prompt.media)[-1], seq.start().seed)
                tokens.append(right if self.choose.random() < self.drafting else self.choose.randrange(VOCAB))
            found[seq.id] = Draft(tokens[len(seq.tokens) :])
        return found

    def finished(self, request) -> bool:
        received = [self.reported.get((request.id, index)) for index in range(request.params.num_seqs)]
        return all(seq is not None and seq.finish_reason for seq in received)

    def hear(self, deltas) -> None:
        for delta in deltas:
            request, _ = self.accepted[delta.request_id]
            first = not any(key[0] == delta.request_id for key in self.reported)
            assert (delta.num_cached_tokens is not None) == first, "the first delta tells of the cache"
            if first and delta.finish_reason != "abort":
                self.check_prompt_logprobs(request, delta.prompt_logprobs)
            received = self.reported.setdefault((delta.request_id, delta.index), Received([]))
            assert received.finish_reason is None, "a delta after the last"
            received.token_ids.extend(delta.token_ids)
            received.finish_reason = delta.finish_reason
            wanted = isinstance(request.params, SamplingParams) and request.params.logprobs is not None
            assert (delta.logprobs is not None) == (wanted and bool(delta.token_ids))

    @staticmethod
    def check_prompt_logprobs(request, found) -> None:
        if not isinstance(request.params, SamplingParams) or request.params.prompt_logprobs is None:
            assert found is None
            return
        tokens = request.prompt.token_ids
        known = entries(request, tokens, request.adapters, request.prompt.media)
        assert found[0] is None
        assert [entry.logprob for entry in found[1:]] == [
            logprob(entry, token) for entry, token in zip(known, tokens[1:], strict=False)
        ]

    def finish(self) -> None:
        """Let everything end, then compare with what each request gets alone."""
        self.blocked, num_steps = set(), 0
        while self.scheduler.has_work or self.in_flight:
            self.step()
            check_scheduler(self.scheduler)
            num_steps += 1
            assert num_steps < MAX_STEPS, "seqs preempt each other forever"
        assert not self.runner.rows, "the runner may forget all"
        context = min(self.limits.max_model_len, self.num_pages * self.page_size + 1)
        for request, seed in self.accepted.values():
            for index, (tokens, reason) in enumerate(alone(request, seed, self.limits.eos_ids, context)):
                received = self.reported[request.id, index]
                if received.finish_reason != "abort":
                    assert (tuple(received.token_ids), received.finish_reason) == (tokens, reason)
                elif isinstance(request.params, SamplingParams):
                    assert tuple(received.token_ids) == tokens[: len(received.token_ids)]
