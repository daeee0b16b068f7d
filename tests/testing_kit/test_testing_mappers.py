"""The check of input mappers for plugin authors says yes and no, each for the right reason."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.hooks.registry import load
from quire.records import Architecture, InputMapper, MappedMedia
from quire_testing import check_input_mapper, tiny_llama


def llama() -> Architecture:
    return load(["llama"]).by_hook("quire_architectures")["LlamaForCausalLM"]


class Tower:
    """A row for each frame of four numbers."""

    def build(self, width, builder):
        return Frames(builder.projection(4, width))


class Frames(torch.nn.Module):
    def __init__(self, projection) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, items, call):
        return [self.projection(item["frames"], call.context([len(item["frames"])])) for item in items]


def mapper(count=len) -> InputMapper:
    class Maps:
        def __init__(self, context) -> None:
            pass

        def map(self, item):
            return MappedMedia(ids=[5] * count(item), tensors={"frames": torch.tensor(item)})

    return InputMapper("made/frames", "LlamaForCausalLM", "frames", Maps)


def test_mappers_are_held_to_one_id_per_row(tmp_path: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path)).config
    multimodal_decoder = replace(llama(), tower=lambda c: Tower())
    items = [[[0.0, 1.0, 2.0, 3.0]], [[1.0] * 4] * 3]
    check_input_mapper(mapper(), multimodal_decoder, config, items)
    with pytest.raises(AssertionError, match="2 ids of width 64, but the tower returns"):
        check_input_mapper(mapper(lambda frames: len(frames) + 1), multimodal_decoder, config, items)
    with pytest.raises(AssertionError, match="has no tower"):
        check_input_mapper(mapper(), llama(), config, items)


class Scaled(Frames):
    """Its scale is derived from its weights, and is none before that."""

    scale = torch.tensor(float("nan"))

    def process_weights(self) -> None:
        self.scale = self.projection.weight.abs().max()

    def forward(self, items, call):
        return [rows * self.scale for rows in super().forward(items, call)]


def test_a_tower_may_derive_something_from_its_weights(tmp_path: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path)).config

    class Prepared(Tower):
        def build(self, width, builder):
            return Scaled(builder.projection(4, width))

    check_input_mapper(mapper(), replace(llama(), tower=lambda c: Prepared()), config, [[[1.0] * 4] * 3])


class Leaking(Frames):
    def forward(self, items, call):
        return [rows + len(items) for rows in super().forward(items, call)]


class Forgetful(Frames):
    def forward(self, items, call):
        return super().forward(items, call)[:1]


@pytest.mark.parametrize(
    ("module", "said"),
    [(Leaking, "other rows for an item among others"), (Forgetful, "received 2 media, and returned rows of 1")],
)
def test_towers_are_held_to_treating_each_item_alone(tmp_path: Path, module: type[Frames], said: str) -> None:
    class Other:
        def build(self, width, builder):
            return module(builder.projection(4, width))

    config = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path)).config
    with pytest.raises(AssertionError, match=said):
        check_input_mapper(
            mapper(), replace(llama(), tower=lambda c: Other()), config, [[[0.0, 1.0, 2.0, 3.0]], [[1.0] * 4] * 3]
        )
