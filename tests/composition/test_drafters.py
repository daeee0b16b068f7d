"""What a request may ask for works beside each drafter, in any way of running.

Some drafts are made right, so that sequences also go on after accepted drafts of heads with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from composition.asking import PLAIN, Rigs, ask, beams, rigs_of, same, settings_of
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Answer, Rig
from every_drafter import Helped, drafter_case, with_help

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter

PROMPT = list(b"The quick brown fox jumps over")
ADAPTED = Feature("adapter", {}, lambda answers: None, request={"adapters": (WeightedAdapter(AdapterRef(name="a")),)})
ROWS = ("same draft model", "other draft model", "medusa", "eagle", "eagle3", "mtp")
"""Drafters; n-gram and suffix drafts are among SETTINGS."""


@dataclass(frozen=True)
class Drafted:
    """Engines, and the settings for a drafter."""

    rigs: Rigs
    way: Setting
    helped: Helped
    plain: dict[str, list[Answer]] = field(default_factory=dict)
    """What each feature gives in the plainest engine, alone, once it was asked for."""

    def check(self, feature: Feature, *ways: Setting) -> None:
        """It is answered as the feature says, and as in the plainest engine."""
        settings = settings_of(self.way, *ways)
        assert settings is not None
        if feature.name not in self.plain:
            self.plain[feature.name] = ask(self.rigs(PLAIN.settings), PROMPT, (feature,), ())
        plain = self.plain[feature.name]
        self.helped.outputs = {tuple(PROMPT): [answer.token_ids for answer in plain]}
        answers = ask(self.rigs(settings), PROMPT, (feature,), (self.way, *ways))
        feature.check(answers)
        assert same(answers, plain), feature.name


@pytest.fixture(scope="module", params=ROWS)
def drafted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Drafted]:
    case, helped = drafter_case(request.param, tmp_path_factory.mktemp("composition")), Helped()
    found = with_help(registry.load(None, enable_lora=True), case.method, helped)
    with rigs_of(case.folder, found, lambda rig: _load(rig, case.adapter)) as rigs:
        yield Drafted(rigs, Setting(request.param, {"speculative_config": dict(case.config)}, company=3), helped)


def _load(rig: Rig, adapter: Path) -> None:
    rig.engine.load_adapter("a", adapter)


@pytest.mark.parametrize("feature", [*FEATURES, ADAPTED], ids=lambda feature: feature.name)
def test_features_hold_with_a_drafter(drafted: Drafted, feature: Feature) -> None:
    drafted.check(feature)


WAYS = [way for way in SETTINGS if "speculative_config" not in way.settings]


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_features_hold_with_a_drafter_in_every_way_of_running(drafted: Drafted, way: Setting) -> None:
    number, step = WAYS.index(way) + ROWS.index(drafted.way.name), len(ROWS)
    for feature in (*FEATURES[number % step :: step], ADAPTED):  # each, in each way, with one of the drafters
        drafted.check(feature, way)


def test_beam_search_runs_beside_drafts(drafted: Drafted) -> None:
    plain = beams(drafted.rigs(PLAIN.settings), PROMPT, PLAIN)
    assert same(beams(drafted.rigs(drafted.way.settings), PROMPT, drafted.way), plain)


def test_drafts_were_right_and_wrong(drafted: Drafted) -> None:
    drafted.check(FEATURES[0])
    stats = drafted.rigs(drafted.way.settings).engine.stats().speculation
    assert stats is not None
    assert 0 < stats.num_accepted_tokens_total < stats.num_draft_tokens_total
    assert drafted.helped.num_own > 0
