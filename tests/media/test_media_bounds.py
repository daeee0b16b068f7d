"""Decoding media is bounded for each prompt, in pixels and in time, and small images don't wait for large ones."""

import asyncio
import threading

import numpy as np
import pytest
from PIL import Image
from unusual_images import encoded, header_of_png

from quire.errors import Overloaded, TooLarge, Unprocessable
from quire.media import images, loader as module
from quire.media.fetching.addresses import is_public
from quire.media.isolated_media import IsolatedMedia
from quire.media.items import MediaBytes
from quire.media.limits import DecodingTime, MediaLimits
from quire.media.loader import MediaLoader


def noise(width, height):
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def intake():
    made = MediaLoader(MediaLimits(max_image_pixels=5000, max_pixels=10_000))
    yield made
    made.close()


@pytest.fixture
def large():
    made = IsolatedMedia(60.0)
    yield made
    made.close()


@pytest.mark.parametrize("modality", ["RGB", "RGBA", "L"])
def test_a_large_image_is_the_same_from_another_process(large, modality):
    image = noise(70, 50).convert(modality)
    found = large.image(encoded(image), 5000, False, 60.0)
    assert found.mode == "RGB"
    assert found.tobytes() == image.convert("RGB").tobytes()


def test_what_is_wrong_with_a_large_image_is_said_as_of_a_small_one(large):
    with pytest.raises(TooLarge, match=r"70 × 50 pixels; at most 100"):
        large.image(encoded(noise(70, 50)), 100, False, 60.0)
    with pytest.raises(Unprocessable, match="damaged"):
        large.image(encoded(noise(70, 50))[:-2000], 5000, False, 60.0)


def test_decoding_that_takes_too_long_is_ended(large):
    with pytest.raises(Unprocessable, match=r"Decoding the image took longer than 0\.001 s and was stopped"):
        large.image(encoded(noise(70, 50)), 5000, False, 0.001)
    assert large.image(encoded(noise(70, 50)), 5000, False, 60.0).size == (70, 50)


async def test_the_images_of_a_prompt_are_bounded_together_before_one_is_decoded(intake):
    items = {"image": [MediaBytes(data=header_of_png(64, 64)) for _ in range(3)]}
    with pytest.raises(TooLarge, match=r"12288 pixels together; at most 10000 are taken \(--max-prompt-pixels\)"):
        await intake.run(lambda: pytest.fail("something was decoded"), items)


async def test_small_images_do_not_wait_for_large_media(intake, monkeypatch):
    monkeypatch.setattr(images, "LIGHT_PIXELS", 100)
    go_on = threading.Event()
    heavy = {"image": [MediaBytes(data=encoded(noise(70, 50)))]}
    several = [asyncio.create_task(intake.run(go_on.wait, heavy)) for _ in range(4)]
    small = {"image": [MediaBytes(data=encoded(noise(5, 5)))]}
    assert await intake.run(lambda: "small", small) == "small"
    go_on.set()
    assert await asyncio.gather(*several) == [True] * 4


async def test_prompts_with_large_media_that_wait_are_bounded(intake, monkeypatch):
    monkeypatch.setattr(module, "MAX_HEAVY_WAITING", 0)
    go_on = threading.Event()
    video = {"video": [MediaBytes(data=b"any")]}
    busy = [asyncio.create_task(intake.run(go_on.wait, video)) for _ in range(module.NUM_HEAVY_THREADS)]
    while intake._num_heavy < module.NUM_HEAVY_THREADS:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="Too many prompts with large media"):
        await intake.run(lambda: None, video)
    go_on.set()
    await asyncio.gather(*busy)


def test_the_media_of_a_prompt_share_the_time_to_be_decoded():
    now = [0.0]
    left = DecodingTime(10.0, lambda: now[0])
    with left.measure():
        now[0] = 4.0
    assert left.remaining_s == 6.0
    with left.measure():
        now[0] = 20.0
    with pytest.raises(Unprocessable, match=r"took longer than 10 seconds \(--media-decode-timeout-s\)"):
        _ = left.remaining_s


async def test_items_of_a_prompt_are_decoded_within_one_time(intake):
    found = await intake.fetch({"image": [encoded(noise(5, 5)), encoded(noise(6, 6))]}, "messages")
    first, second = found["image"]
    assert first.time is second.time
    assert intake.decode("image", first).size == (5, 5)
    assert first.time.remaining_s < 30.0


@pytest.mark.parametrize("address", ["192.0.0.8", "192.88.99.1", "3fff::1", "5f00::1", "168.63.129.16"])
def test_addresses_that_are_reserved_or_of_a_clouds_host_are_not_public(address):
    assert not is_public(address)
