"""Qwen3.5 with images and videos, dense or a mixture of experts: Qwen3-VL's encoder before a hybrid language model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, InputMapper, Rope, hookimpl, with_attention
from quire_plugins.architectures.hybrid import qwen_delta
from quire_plugins.vision import qwen_vl
from quire_plugins.vision.qwen3_vl import qwen3_vl

NAME, MOE = "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"

SECTIONS = (11, 11, 10)
"""Default for configs without the field."""


def decoder(c: Any) -> Decoder:
    """Describes the language model of `Qwen3_5Config`."""
    return _placed(c, qwen_delta.decoder(c.text_config))


def moe_decoder(c: Any) -> Decoder:
    """Describes the language model of `Qwen3_5MoeConfig`."""
    return _placed(c, qwen_delta.moe_decoder(c.text_config))


def _placed(c: Any, found: Decoder) -> Decoder:
    """With positions by time, height and width in the layers that have attention."""
    rope = Rope.from_config(c.text_config, c.text_config.head_dim)
    placed = with_attention(found, rope=replace(rope, sections=rope.sections or SECTIONS, mixed=True))
    return replace(placed, tied=c.tie_word_embeddings)


NAMES = qwen_delta.NAMES | qwen3_vl.TOWER_NAMES.and_under("model")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both kinds have the tower of Qwen3-VL, without features for later blocks."""
    yield Architecture(NAME, decoder, NAMES, qwen3_vl.tower)
    yield Architecture(MOE, moe_decoder, NAMES, qwen3_vl.tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and videos, as in Qwen3-VL; chat templates write the placeholders."""
    yield InputMapper("qwen3.5/image", NAME, "image", qwen3_vl.pictures, qwen_vl.PICTURE)
    yield InputMapper("qwen3.5/video", NAME, "video", qwen3_vl.videos, qwen_vl.VIDEO)
    yield InputMapper("qwen3.5-moe/image", MOE, "image", qwen3_vl.pictures, qwen_vl.PICTURE)
    yield InputMapper("qwen3.5-moe/video", MOE, "video", qwen3_vl.videos, qwen_vl.VIDEO)
