"""Sampled tokens have the model's distribution, whatever was drafted: chi-square over 20,000 pairs of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafted_pairs import LOGITS, SOFT, SPARSE, VOCAB, Pairs

from quire.engine.speculation.acceptance import NextDraft, Rejection, Typical, acceptance_of
from quire.errors import ConfigError
from quire.settings.speculative_config import SpeculativeConfig

HARD = torch.nn.functional.one_hot(LOGITS.argmax(-1), VOCAB).float()
"""A drafter that always drafts the most likely token, and says nothing of probabilities."""
DRAFTERS = {
    "soft": {"q": SOFT, "tells": True},
    "soft, numbers of its own": {"q": SOFT, "tells": True, "coupled": False},
    "without some tokens": {"q": SPARSE, "tells": True},
    "drawn, untold": {"q": SOFT, "tells": False},
    "point mass": {"q": HARD, "tells": False},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nucleus": {"params": {"temperature": 0.8, "top_p": 0.85}},
    "filters": {"params": {"temperature": 1.3, "top_k": 4, "min_p": 0.1}},
    "penalties": {"params": {"presence_penalty": 0.8, "frequency_penalty": 0.5, "top_p": 0.95}},
    "grammar": {"grammar": True},
}
SOME = [
    *(("soft", name) for name in REQUESTS),
    *((name, "plain") for name in DRAFTERS if name != "soft"),
    ("drawn, untold", "penalties"),
    ("drawn, untold", "grammar"),
]


@pytest.mark.parametrize(("drafter", "request_"), SOME, ids=str)
def test_rejection_keeps_the_distribution(drafter: str, request_: str) -> None:
    p_value = Pairs(Rejection(), **DRAFTERS[drafter], **REQUESTS[request_]).p_value()
    print(f"p = {p_value:.4f}")
    assert p_value > 0.001


@pytest.mark.parametrize("request_", ["plain", "penalties", "grammar"])
def test_exact_acceptance_keeps_the_distribution(request_: str) -> None:
    p_value = Pairs(None, **DRAFTERS["soft"], **REQUESTS[request_]).p_value()
    print(f"p = {p_value:.4f}")
    assert p_value > 0.001


class AcceptAlways(Rejection):
    """The planted fault: every draft is right."""

    def choose(self, logits: Any, states: Any, drafts: Any, draw_default: Any) -> list[int]:
        tokens = super().choose(logits, states, drafts, draw_default)
        return [token if draft is None else draft.token_id for token, draft in zip(tokens, drafts, strict=True)]


def test_accepting_always_is_found_out() -> None:
    assert Pairs(AcceptAlways(), **DRAFTERS["soft"]).p_value() < 1e-9


def test_typical_acceptance_accepts_likely_tokens_only() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.39, 0.01]]).repeat(3, 1))
    states = Pairs(None, SOFT, False, params={"temperature": 1.0}).states[:3]
    drafts = [NextDraft(1), NextDraft(2), None]
    assert Typical(0.09, 0.3).choose(logits, states, drafts, lambda *given: [0, 0, 2]) == [1, 0, 2]
    entropy = float(torch.special.entr(torch.tensor([0.6, 0.39, 0.01])).sum())
    exactly = 0.01 / torch.tensor(-entropy).exp().item()  # alpha at which the unlikely token is on the border
    assert Typical(0.09, exactly * 1.001).choose(logits, states, drafts, lambda *given: [0, 0, 2]) == [1, 0, 2]
    assert Typical(0.09, exactly * 0.999).choose(logits, states, drafts, lambda *given: [0, 0, 2]) == [1, 2, 2]
    greedy = Pairs(None, SOFT, False, params={"temperature": 0.0}).states[:3]
    assert Typical(0.09, 0.3).choose(logits, greedy, drafts, lambda *given: [0, 0, 0]) == [0, 0, 0]


def test_settings_of_acceptance(caplog: pytest.LogCaptureFixture) -> None:
    def parse(**given: Any) -> SpeculativeConfig:
        return SpeculativeConfig.from_mapping({"method": "ngram", **given}, {"ngram": ()})

    assert acceptance_of(parse()) is None
    assert acceptance_of(parse(acceptance="rejection")) == Rejection()
    assert not caplog.text
    assert acceptance_of(parse(acceptance="typical", posterior_alpha=0.5)) == Typical(0.09, 0.5)
    assert "another distribution" in caplog.text
    for wrong in (
        {"acceptance": "sometimes"},
        {"posterior_alpha": 0.3},
        {"acceptance": "typical", "posterior_alpha": 0},
    ):
        with pytest.raises(ConfigError, match=list(wrong)[-1]):
            parse(**wrong)
