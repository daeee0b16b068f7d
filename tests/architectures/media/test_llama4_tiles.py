"""How images of Llama 4 are cut into tiles: by the rules of transformers' image processor."""

from __future__ import annotations

import numpy as np
import pytest
from llama4_family import tiles
from PIL import Image

from quire.errors import CheckpointError
from quire_plugins.vision.llama4.inputs import Tiles, canvases


def test_canvases_of_one_shape_follow_each_other() -> None:
    assert canvases(5) == [(1, 5), (5, 1), (1, 4), (2, 2), (1, 1), (4, 1), (1, 3), (3, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("settings", "size", "wanted"),
    [
        ({"max_patches": 3}, (200, 300), (1, 2)),
        ({}, (20, 20), (1, 1)),
        ({}, (60, 60), (2, 2)),
        ({"resize_to_max_canvas": True}, (20, 20), (2, 2)),
        ({}, (10, 100), (1, 4)),
    ],
)
def test_the_canvas_scales_an_image_up_least_or_down_least(
    settings: dict[str, object], size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    side = 224 if size == (200, 300) else 28
    given = Tiles(side, {"max_patches": 4, **settings})
    assert given.canvas(*size) == wanted


def test_an_image_is_scaled_without_distortion_and_up_to_the_side_of_a_tile_only() -> None:
    largest = tiles(resize_to_max_canvas=True)
    assert largest.within(200, 300, 450, 200) == (133, 200)
    assert largest.within(800, 600, 450, 1300) == (450, 337)
    assert tiles().within(10, 20, 56, 56) == (14, 28)


def test_tiles_are_row_by_row_and_the_whole_image_comes_last() -> None:
    quarters = np.zeros((56, 56, 3), np.uint8)
    quarters[:28, 28:], quarters[28:, :28], quarters[28:, 28:] = 80, 160, 255
    pixels, (rows, columns) = tiles()(Image.fromarray(quarters))
    assert (rows, columns, pixels.shape) == (2, 2, (5, 3, 28, 28))
    means = [float(tile.mean()) for tile in pixels]
    assert means == pytest.approx([-1, 2 * 80 / 255 - 1, 2 * 160 / 255 - 1, 1, np.mean(means[:4])], abs=0.02)


def test_tiles_of_another_side_are_refused() -> None:
    with pytest.raises(CheckpointError, match="makes tiles of 14 × 14 pixels; the model reads 28 × 28"):
        Tiles(28, {"size": {"height": 14, "width": 14}})
