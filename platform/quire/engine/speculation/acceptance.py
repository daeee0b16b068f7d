"""Which drafts are accepted, beside the exact ones: by rejection sampling, or by Medusa's typical acceptance.

Both decide on the distribution p that a token is sampled from without drafts: after edits, penalties, processors,
grammar, temperature, top_k, top_p and min_p. Greedy rows are exact in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Acceptance(Protocol):
    """Chooses the tokens of rows of which some have a draft."""

    def choose(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        drafts: Sequence[NextDraft | None],
        draw_default: DrawDefault,
    ) -> list[int]:
        """Token ids, -1 = none possible. logits: float32 [rows, vocab], all changes made."""
        ...


@dataclass(frozen=True, slots=True)
class Rejection:
    """Speculative sampling: the tokens have the distribution p, whatever the drafts.

    A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)); else the token is drawn from
    max(p - q, 0) normalized. Without probabilities q is all at x. (Leviathan et al., arXiv 2211.17192; Chen et al.,
    arXiv 2302.01318.) So a request with a seed keeps its distribution, but not the tokens that it has without drafts.
    """

    def choose(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        drafts: Sequence[NextDraft | None],
        draw_default: DrawDefault,
    ) -> list[int]:
        """The default draw has numbers of its own too: those of the sequence may have decided where drafts end."""
        tokens = draw_default(logits, states, DRAW_SALT)
        rows, p, drafted = _drafted(logits, states, drafts, tokens)
        if not rows:
            return tokens
        ids = torch.tensor([[draft.token_id] for draft in drafted], device=logits.device)
        soft = [i for i, draft in enumerate(drafted) if draft.probs is not None]
        of_draft = torch.ones(len(rows), 1, dtype=torch.float64, device=logits.device)
        residual = p.scatter(1, ids, 0.0)
        if soft:
            index = torch.tensor(soft, device=logits.device)
            q = torch.stack(
                [probs.to(logits.device) for draft in drafted if (probs := draft.probs) is not None]
            ).double()
            q = q / q.sum(-1, keepdim=True)
            of_draft[index] = q.gather(1, ids[index])
            residual[index] = (p[index] - q).clamp(min=0)
        seeds, positions = _streams([states[row] for row in rows])
        accepted = p.gather(1, ids)[:, 0] > of_draft[:, 0] * _tensor(uniforms(seeds ^ ACCEPT_SALT, positions), p)
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
        others = draw(residual, _tensor(uniforms(seeds ^ RESIDUAL_SALT, positions), p))
        return _replaced(tokens, rows, torch.where(accepted, ids[:, 0], others))


@dataclass(frozen=True, slots=True)
class Typical:
    """Accepts a draft x of a sampled row if p(x) > min(threshold, alpha * exp(-entropy of p)).

    Other tokens are drawn as without drafts. The output has another distribution than p: more drafts are accepted.
    (Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1.)
    """

    threshold: float
    alpha: float

    def choose(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        drafts: Sequence[NextDraft | None],
        draw_default: DrawDefault,
    ) -> list[int]:
        tokens = draw_default(logits, states, np.uint64(0))
        rows, p, drafted = _drafted(logits, states, drafts, tokens)
        if not rows:
            return tokens
        ids = torch.tensor([draft.token_id for draft in drafted], device=logits.device)
        limit = (self.alpha * torch.special.entr(p).sum(-1).neg().exp()).clamp(max=self.threshold)
        accepted = p.gather(1, ids[:, None])[:, 0] > limit
        drawn = torch.tensor([tokens[row] for row in rows], device=logits.device)
        return _replaced(tokens, rows, torch.where(accepted, ids, drawn))


def acceptance_of(config: SpeculativeConfig) -> Acceptance | None:
    """None if drafts are accepted exactly."""
    if config.acceptance == "typical":
        log.warning(
            "Drafts are accepted by `typical`: sampled answers have another distribution than without drafts. "
            "`exact` and `rejection` keep it."
        )
        return Typical(config.posterior_threshold, config.posterior_alpha)
    return Rejection() if config.acceptance == "rejection" else None


def _drafted(
    logits: Tensor, states: Sequence[SamplingState], drafts: Sequence[NextDraft | None], tokens: Sequence[int]
) -> tuple[list[int], Tensor, list[NextDraft]]:
    """The sampled rows with drafts, their distributions float64 [rows, vocab], and their drafts.

    tokens: of all rows, -1 where there is no distribution.
    """
    found = [
        (row, draft)
        for row, draft in enumerate(drafts)
        if draft is not None and states[row].draw_params[0] > 0 and tokens[row] >= 0
    ]
    if not found:
        return [], logits[:0], []
    rows = [row for row, _ in found]
    chosen = logits if len(rows) == len(logits) else logits[torch.tensor(rows, device=logits.device)]
    return rows, distribution(chosen, [states[row].draw_params for row in rows]), [draft for _, draft in found]


def _streams(states: Sequence[SamplingState]) -> tuple[np.ndarray, np.ndarray]:
    """Seeds, uint64, and positions of the next tokens, int64."""
    return (
        np.array([state.seed for state in states], np.uint64),
        np.array([len(state.output_ids) for state in states], np.int64),
    )


def _tensor(numbers: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)


def _replaced(tokens: list[int], rows: Sequence[int], chosen: Tensor) -> list[int]:
    for row, token in zip(rows, chosen.tolist(), strict=True):
        tokens[row] = token
    return tokens
