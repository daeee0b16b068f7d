"""Pairs of tokens from a model of six tokens, sampled through `verify` with drafts of which some are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from reference_sampling import kept_by_hand
from torch import Tensor

from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.sampling.logits_edits import LogitsEdits
from quire.engine.sampling.rng import seq_seed, uniforms
from quire.engine.sampling.sampler import Sampler, SamplingState
from quire.engine.speculation.acceptance import Acceptance
from quire.engine.speculation.distribution import draw
from quire.engine.speculation.grammar_drafts import follow_grammars
from quire.engine.speculation.verification import verify
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker, MaskCost
from quire.params.sampling import SamplingParams
from quire.records import Context, Draft, OpQuery, Registry
from quire_kernels import select

VOCAB, COUNT = 6, 20_000
LOGITS = torch.randn(VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(11)) * 1.2
"""After each token; the last row is that of the prompt."""
SOFT = torch.softmax(torch.randn(VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(12)), -1)
SPARSE = torch.nn.functional.normalize(SOFT * (SOFT.median(-1, keepdim=True).values < SOFT), p=1.0)
"""Distributions of drafters, the second without half of the tokens."""


class Unequal:
    """A grammar: the first token is not 3, the second not the first one."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_terminated = self.is_accepting = False

    def _forbidden(self) -> int:
        return self.tokens[-1] if self.tokens else 3

    def fill(self, mask: Tensor) -> None:
        mask[0] = (1 << VOCAB) - 1 - (1 << self._forbidden())

    def accept(self, token_id: int) -> bool:
        allowed = token_id != self._forbidden()
        self.tokens += [token_id] * allowed
        return allowed

    def rollback(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]

    def jump_forward(self) -> Sequence[int]:
        return ()


@dataclass
class Pairs:
    """COUNT sequences. q: of the drafter, by the token before. tells: whether it gives its probabilities. coupled:
    whether it draws with the random numbers of the sequences."""

    acceptance: Acceptance | None
    q: Tensor
    tells: bool
    coupled: bool = True
    grammar: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        registry = Registry(records={})
        self.tracker = ConstraintTracker(registry, VOCAB)
        ops = select.choose(OpQuery("cpu", "float32"))
        processors = LogitsProcessors(registry, lambda plugin: Context(vocab_size=VOCAB))
        self.sampler = Sampler(processors, self.tracker, ops)
        self.rng = np.random.default_rng(3)
        self.states = [self._state(SamplingParams(max_tokens=9, **self.params), i) for i in range(COUNT)]

    def _state(self, params: SamplingParams, i: int) -> SamplingState:
        ids: list[int] = []
        edits = LogitsEdits(params, (), (), ids) if params.edits_logits else None
        constraint = Constraint("p", Unequal(), cost=MaskCost(tokens=1 << 40)) if self.grammar else None
        return SamplingState(params, seq_seed(i, 0), ids, edits, constraint=constraint)

    def sample(self) -> Counter[tuple[int, ...]]:
        """How often each pair of tokens was sampled; a third token that came with it is not looked at."""
        short = list(range(COUNT))
        while short:
            self._step(short)
            short = [i for i in short if len(self.states[i].output_ids) < 2]
        return Counter(tuple(state.output_ids[:2]) for state in self.states)

    def _step(self, seqs: Sequence[int]) -> None:
        states = [self.states[i] for i in seqs]
        before = [state.output_ids[-1] if state.output_ids else VOCAB for state in states]
        first = self._draw(states, before, 0)
        second = self._draw(states, first, 1)
        drafts = {}
        for i, last, pair in zip(seqs, before, zip(first, second, strict=True), strict=True):
            drafts[i] = Draft(pair, self.q[[last, pair[0]]] if self.tells else None)
        known = follow_grammars(self.tracker, dict(zip(seqs, states, strict=True)), drafts)
        rows = [row for i, last in zip(seqs, before, strict=True) for row in (last, *known[i].token_ids)]
        token_ids, probs = ([getattr(known[i], name) for i in seqs] for name in ("token_ids", "probs"))
        masks = self.sampler.start_masks(states)
        samples, _ = verify(self.sampler, LOGITS[rows], states, masks, token_ids, probs, self.acceptance)
        assert all(sample.error is None for sample in samples)

    def _draw(self, states: Sequence[SamplingState], before: Sequence[int], ahead: int) -> list[int]:
        positions = np.array([len(state.output_ids) + ahead for state in states])
        seeds = np.array([state.seed for state in states], np.uint64)
        numbers = uniforms(seeds, positions) if self.coupled else self.rng.random(len(states))
        found: list[int] = draw(self.q[before].double(), torch.from_numpy(numbers)).tolist()
        return found

    def p_value(self) -> float:
        """Of the chi-square test against the exact distribution; 0 if something impossible was sampled."""
        counts, exact = self.sample(), self._exact()
        if not counts.keys() <= exact.keys():
            return 0.0
        statistic = sum((counts[pair] - COUNT * p) ** 2 / (COUNT * p) for pair, p in exact.items())
        halves = torch.tensor([(len(exact) - 1) / 2, statistic / 2], dtype=torch.float64)
        return float(torch.special.gammaincc(halves[0], halves[1]))

    def _exact(self) -> dict[tuple[int, ...], float]:
        exact = {}
        for first, p in self._after(()).items():
            exact.update({(first, second): p * after for second, after in self._after((first,)).items()})
        return exact

    def _after(self, output: tuple[int, ...]) -> dict[int, float]:
        """Penalties, grammar and filters in plain words."""
        logits = LOGITS[output[-1] if output else VOCAB].clone()
        params = self.states[0].params
        assert isinstance(params, SamplingParams)
        for token in output:
            logits[token] -= params.presence_penalty + params.frequency_penalty
        logits[3 if not output else output[-1]] -= torch.inf if self.grammar else 0
        found = kept_by_hand(logits, params.temperature, max(params.top_k, 0), params.top_p, params.min_p)
        return {token: p for token, p in found.items() if p > 0}
