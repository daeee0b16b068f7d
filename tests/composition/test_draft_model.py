"""What a request may ask for works beside a draft model, in any way of running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from composition.asking import PLAIN, Rigs, ask, beams, check_in_ways, rigs_of, same, settings_of, some_text
from composition.features import FEATURES, SETTINGS, Feature, Setting

from quire.hooks import registry
from quire_testing.tiny import tiny_llama

PROMPT = list(b"The quick brown fox jumps over")


@dataclass(frozen=True)
class Drafted:
    """Engines, and the settings for a draft model: the same model, or another one whose drafts are mostly wrong."""

    rigs: Rigs
    way: Setting


@pytest.fixture(scope="module", params=["same", "other"])
def drafted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Drafted]:
    root = tmp_path_factory.mktemp("composition")
    draft = tiny_llama(root / "draft", seed=3 if request.param == "same" else 4)
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 4}
    with rigs_of(tiny_llama(root / "tiny", seed=3), registry.load(None)) as rigs:
        yield Drafted(rigs, Setting("draft model", {"speculative_config": config}, company=3))


@pytest.mark.parametrize("feature", FEATURES, ids=[feature.name for feature in FEATURES])
def test_features_hold_with_a_draft_model(drafted: Drafted, feature: Feature) -> None:
    check_in_ways(drafted.rigs, PROMPT, feature, (drafted.way,), some_text)


WAYS = [way for way in SETTINGS if "speculative_config" not in way.settings]


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_features_hold_with_a_draft_model_in_every_way_of_running(drafted: Drafted, way: Setting) -> None:
    settings = settings_of(way, drafted.way)
    assert settings is not None
    rig, number = drafted.rigs(settings), WAYS.index(way)
    for feature in FEATURES[number % 3 :: 3]:  # each in every third way
        plain = ask(drafted.rigs(PLAIN.settings), PROMPT, (feature,), ())
        answers = ask(rig, PROMPT, (feature,), (way, drafted.way))
        feature.check(answers)
        assert same(answers, plain), feature.name


def test_beam_search_runs_beside_drafts(drafted: Drafted) -> None:
    plain = beams(drafted.rigs(PLAIN.settings), PROMPT, PLAIN)
    assert same(beams(drafted.rigs(drafted.way.settings), PROMPT, drafted.way), plain)
