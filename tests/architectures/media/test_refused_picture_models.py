"""Configs of models that see and cannot be served: errors that name the field, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from picture_families import families

from quire.errors import CheckpointError
from quire_plugins.vision.aya import aya_vision
from quire_plugins.vision.gemma4 import gemma4_vision
from quire_plugins.vision.llama4 import llama4
from quire_plugins.vision.paligemma import paligemma


def config_of(name: str) -> Any:
    import transformers

    family = families()[name]
    return getattr(transformers, family.architecture).config_class(**family.config)


def test_gemma_4_that_sees_images_in_both_directions_is_refused() -> None:
    config = config_of("gemma 4")
    config.text_config.use_bidirectional_attention = "vision"
    with pytest.raises(CheckpointError, match="has use_bidirectional_attention 'vision' in `text_config`"):
        gemma4_vision.decoder(config)


@pytest.mark.parametrize(
    ("name", "build", "field", "value", "wanted"),
    [
        ("llama 4", llama4.tower, "intermediate_size", 96, "`intermediate_size` must be 192"),
        ("llama 4", llama4.tower, "pixel_shuffle_ratio", 1 / 3, "`pixel_shuffle_ratio` joins squares of 3 × 3"),
        ("gemma 4", gemma4_vision.tower, "num_key_value_heads", 2, "as many key-value heads as heads"),
    ],
)
def test_sizes_that_disagree_are_refused(
    name: str, build: Callable[[Any], Any], field: str, value: float, wanted: str
) -> None:
    config = config_of(name)
    setattr(config.vision_config, field, value)
    with pytest.raises(CheckpointError, match=wanted):
        build(config)


@pytest.mark.parametrize(("name", "build"), [("aya vision", aya_vision.decoder), ("paligemma", paligemma.decoder)])
def test_other_language_models_are_refused(name: str, build: Callable[[Any], Any]) -> None:
    config = config_of(name)
    config.text_config = config_of("internvl").text_config
    with pytest.raises(CheckpointError, match="language model is 'qwen2'"):
        build(config)
