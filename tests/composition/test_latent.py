"""What a request may ask for works on a model with latent attention and experts, in any way of running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from composition.asking import PLAIN, Rigs, beams, check_in_ways, rigs_of, same, some_text
from composition.features import FEATURES, SETTINGS, Setting
from latent_cases import SPARSE

from quire.hooks import registry
from quire_testing.tiny import tiny_model

PROMPT = list(b"The quick brown fox jumps over")


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """Engines by their settings, made when first needed."""
    folder = tmp_path_factory.mktemp("latent") / "tiny"
    tiny_model(folder, "DeepseekV3ForCausalLM", seed=3, head_dim=8, **SPARSE)
    with rigs_of(folder, registry.load(None)) as made:
        yield made


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_features_hold_in_every_way_of_running(rigs: Rigs, way: Setting) -> None:
    number = SETTINGS.index(way)
    for feature in FEATURES[number % 3 :: 3]:  # each in every third way
        check_in_ways(rigs, PROMPT, feature, (way,), some_text)


@pytest.mark.parametrize("way", SETTINGS[::2], ids=[way.name for way in SETTINGS[::2]])
def test_beam_search_gives_the_same_in_every_other_way_of_running(rigs: Rigs, way: Setting) -> None:
    plain = beams(rigs(PLAIN.settings), PROMPT, PLAIN)
    assert len(plain) == 3
    assert same(beams(rigs(way.settings), PROMPT, way), plain)
