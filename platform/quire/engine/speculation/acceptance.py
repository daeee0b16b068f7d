"""Which drafts are accepted, beside the exact ones: by rejection sampling, or by Medusa's typical acceptance.

Both decide on the distribution p that a token is sampled from without drafts: after edits, penalties, processors,
grammar, temperature, top_k, top_p and min_p. Greedy rows are exact in any case.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from quire.engine.sampling.rng import uniforms
from quire.engine.sampling.sampler import SamplingState
from quire.engine.speculation.distribution import distribution, draw
from quire.settings.speculative_config import SpeculativeConfig

log = logging.getLogger(__name__)

DRAW_SALT, ACCEPT_SALT, RESIDUAL_SALT = (np.uint64(salt) for salt in (0x5D0, 0x5D1, 0x5D2))
"""Each seeds random numbers of its own, because a drafter may have drawn with those of the sequence."""

DrawDefault = Callable[[Tensor, Sequence[SamplingState], np.uint64], list[int]]
"""Draws without looking at drafts: the method `Sampler.draw`."""


@dataclass(frozen=True, slots=True)
class NextDraft:
    """The draft of a row, and the distribution [vocab] that it was drawn from; None if it was certain."""

    token_id: int
    probs: Tensor | None = None


class Acceptance(ABC):
    """Chooses the tokens of rows of which some have a draft. salt: of the numbers that `draw_default` draws with."""

    salt: ClassVar[np.uint64]

    def choose(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        drafts: Sequence[NextDraft | None],
        draw_default: DrawDefault,
    ) -> list[int]:
        """Token ids, -1 = none possible. logits: float32 [rows, vocab], all changes made."""
        tokens = draw_default(logits, states, self.salt)
        found = [
            (row, draft)
            for row, draft in enumerate(drafts)
            if draft is not None and states[row].draw_params[0] > 0 and tokens[row] >= 0
        ]
        if not found:
            return tokens
        rows = [row for row, _ in found]
        sampled = [states[row] for row in rows]
        chosen = logits if len(rows) == len(logits) else logits[torch.tensor(rows, device=logits.device)]
        p = distribution(chosen, [state.draw_params for state in sampled])
        drawn = torch.tensor([tokens[row] for row in rows], device=logits.device)
        verified = self._verified(p, sampled, [draft for _, draft in found], drawn)
        for row, token in zip(rows, verified.tolist(), strict=True):
            tokens[row] = token
        return tokens

    @abstractmethod
    def _verified(
        self, p: Tensor, states: Sequence[SamplingState], drafts: Sequence[NextDraft], drawn: Tensor
    ) -> Tensor:
        """Tokens int64 [rows] of sampled rows with drafts. p: float64 [rows, vocab]. drawn: the default draws."""


@dataclass(frozen=True, slots=True)
class Rejection(Acceptance):
    """Speculative sampling: the tokens have the distribution p, whatever the drafts.

    A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)); else the token is drawn from
    max(p - q, 0) normalized. Without probabilities q is all at x. (Leviathan et al., arXiv 2211.17192; Chen et al.,
    arXiv 2302.01318.) So a request with a seed keeps its distribution, but not the tokens that it has without drafts.

    The default draw has numbers of its own too: those of the sequence may have decided where drafts end.
    """

    salt = DRAW_SALT

    def _verified(
        self, p: Tensor, states: Sequence[SamplingState], drafts: Sequence[NextDraft], drawn: Tensor
    ) -> Tensor:
        ids = torch.tensor([[draft.token_id] for draft in drafts], device=p.device)
        soft = [i for i, draft in enumerate(drafts) if draft.probs is not None]
        of_draft = torch.ones(len(drafts), 1, dtype=torch.float64, device=p.device)
        residual = p.scatter(1, ids, 0.0)
        if soft:
            index = torch.tensor(soft, device=p.device)
            q = torch.stack([probs.to(p.device) for draft in drafts if (probs := draft.probs) is not None]).double()
            q = q / q.sum(-1, keepdim=True)
            of_draft[index] = q.gather(1, ids[index])
            residual[index] = (p[index] - q).clamp(min=0)
        seeds, positions = _streams(states)
        accepted = p.gather(1, ids)[:, 0] > of_draft[:, 0] * _tensor(uniforms(seeds ^ ACCEPT_SALT, positions), p)
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
        others = draw(residual, _tensor(uniforms(seeds ^ RESIDUAL_SALT, positions), p))
        return torch.where(accepted, ids[:, 0], others)


@dataclass(frozen=True, slots=True)
class Typical(Acceptance):
    """Accepts a draft x of a sampled row if p(x) > min(threshold, alpha * exp(-entropy of p)).

    Other tokens are drawn as without drafts. The output has another distribution than p: more drafts are accepted.
    (Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1.)
    """

    salt = np.uint64(0)
    threshold: float
    alpha: float

    def _verified(
        self, p: Tensor, states: Sequence[SamplingState], drafts: Sequence[NextDraft], drawn: Tensor
    ) -> Tensor:
        ids = torch.tensor([draft.token_id for draft in drafts], device=p.device)
        limit = (self.alpha * torch.special.entr(p).sum(-1).neg().exp()).clamp(max=self.threshold)
        accepted = p.gather(1, ids[:, None])[:, 0] > limit
        return torch.where(accepted, ids, drawn)


def acceptance_of(config: SpeculativeConfig) -> Acceptance | None:
    """None if drafts are accepted exactly."""
    if config.acceptance == "typical":
        log.warning(
            "Drafts are accepted by `typical`: sampled answers have another distribution than without drafts. "
            "`exact` and `rejection` keep it."
        )
        return Typical(config.posterior_threshold, config.posterior_alpha)
    return Rejection() if config.acceptance == "rejection" else None


def _streams(states: Sequence[SamplingState]) -> tuple[np.ndarray, np.ndarray]:
    """Seeds, uint64, and positions of the next tokens, int64."""
    return (
        np.array([state.seed for state in states], np.uint64),
        np.array([len(state.output_ids) for state in states], np.int64),
    )


def _tensor(numbers: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)
