"""Scenes as pictures, drawn with Pillow."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageColor, ImageDraw, ImageFont

from data.images.scenes import Scene, Thing

Point = tuple[float, float]


def draw(scene: Scene, rng: random.Random, size: int = 216) -> Image.Image:
    """A square picture of `size` pixels on a light ground. Sizes, places and colours vary a little."""
    ground = (255, 255, 255) if rng.random() < 0.6 else tuple(rng.randint(225, 255) for _ in range(3))
    picture = Image.new("RGB", (size, size), ground)
    canvas = ImageDraw.Draw(picture)
    cell = size / 3
    for thing in scene.things:
        radius = rng.uniform(0.30, 0.44) * cell
        free = 0.46 * cell - radius
        x = (thing.column + 0.5) * cell + rng.uniform(-free, free)
        y = (thing.row + 0.5) * cell + rng.uniform(-free, free)
        _draw_thing(canvas, thing, (x, y), radius, _shade(thing.colour, rng))
    return picture


def _shade(colour: str, rng: random.Random) -> tuple[int, ...]:
    """The colour that Pillow knows by this name, or one close to it."""
    return tuple(min(255, max(0, value + rng.randint(-25, 25))) for value in ImageColor.getrgb(colour))


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing, centre: Point, radius: float, fill: tuple[int, ...]) -> None:
    x, y = centre
    box = (x - radius, y - radius, x + radius, y + radius)
    if thing.is_digit:
        font, bold = _font(round(2.4 * radius)), round(0.07 * radius)
        canvas.text(centre, thing.shape, fill=fill, font=font, anchor="mm", stroke_width=bold, stroke_fill=fill)
    elif thing.shape == "circle":
        canvas.ellipse(box, fill=fill)
    elif thing.shape == "ring":
        canvas.ellipse(box, outline=fill, width=round(0.36 * radius))
    else:
        canvas.polygon([(x + radius * u, y + radius * v) for u, v in _OUTLINES[thing.shape]], fill=fill)


def _star(points: int, inner: float) -> Sequence[Point]:
    """Corners of a star of radius 1 with one point upwards."""
    radii = (1.0, inner) * points
    angles = (math.pi * i / points for i in range(2 * points))
    return [(r * math.sin(a), -r * math.cos(a)) for r, a in zip(radii, angles, strict=True)]


def _cross(arm: float) -> Sequence[Point]:
    """Corners of an upright cross whose arms are twice `arm` wide."""
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    turns = [quarter]
    for _ in range(3):
        turns.append([(-v, u) for u, v in turns[-1]])
    return [corner for turn in turns for corner in turn]


_OUTLINES: dict[str, Sequence[Point]] = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0.0, -1.0), (1.0, 0.85), (-1.0, 0.85)],
    "star": _star(5, 0.42),
    "cross": _cross(0.32),
}


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
