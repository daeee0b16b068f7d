"""Images from bytes and from Python: good ones as transformers loads them, bad ones refused with a sentence."""

import contextlib
import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from transformers.image_utils import load_image
from unusual_images import encoded, header_of_png

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.images import as_image, decode_image

PIXELS = 1_000_000
SIZE = (23, 17)


def drawing(mode="RGB"):
    noise = np.random.default_rng(3).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
    image = Image.fromarray(noise)
    ImageDraw.Draw(image).rectangle((2, 3, 9, 12), fill=(200, 30, 60))
    return image.convert(mode)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        ("RGB", "PNG"),
        ("RGB", "JPEG"),
        ("RGB", "WEBP"),
        ("RGB", "BMP"),
        ("RGB", "TIFF"),
        ("RGB", "GIF"),
        ("RGB", "PPM"),
        ("L", "PNG"),
        ("1", "PNG"),
        ("P", "PNG"),
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("YCbCr", "JPEG"),
    ],
)
def test_an_image_is_what_transformers_loads(mode, form):
    data = encoded(drawing(mode), form)
    made = decode_image(data, PIXELS)
    assert made.mode == "RGB"
    assert made.size == SIZE
    assert np.array_equal(made, load_image(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_in_exif_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(drawing(), exif=exif)
    made = decode_image(data, PIXELS)
    assert made.size == (SIZE if orientation < 5 else SIZE[::-1])
    assert np.array_equal(made, load_image(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_picture_with_broken_exif_is_a_picture(form):
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = exif.tobytes()
    other_type = whole.replace(b"\x01\x12\x00\x03", b"\x01\x12\x00\x02")
    for broken in (whole[:12], whole[:6] + b"MM\x9e*" + whole[10:], other_type):
        assert decode_image(encoded(drawing(), form, exif=broken), PIXELS).size == SIZE
    assert decode_image(encoded(drawing(), form, exif=whole), PIXELS).size == SIZE[::-1]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_a_grey_image_of_16_bits_keeps_its_upper_eight(form):
    grey = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    made = decode_image(encoded(Image.fromarray(grey), form), PIXELS)
    assert np.array_equal(made, np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_what_is_transparent_is_white():
    image = drawing("RGBA")
    image.putalpha(Image.new("L", SIZE, 0))
    assert set(decode_image(encoded(image), PIXELS).get_flattened_data()) == {(255, 255, 255)}
    image.putalpha(Image.new("L", SIZE, 255))
    assert np.array_equal(decode_image(encoded(image), PIXELS), drawing())
    palette = Image.new("P", (1, 2))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((0, 1), 1)
    seen = decode_image(encoded(palette, transparency=1), PIXELS)
    assert [seen.getpixel((0, 0)), seen.getpixel((0, 1))] == [(10, 20, 30), (255, 255, 255)]


def test_an_animation_is_its_first_frame():
    frames = [Image.new("RGB", SIZE, colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=10)
    assert set(decode_image(data, PIXELS).get_flattened_data()) == {(255, 0, 0)}


def test_low_detail_shrinks_what_is_larger_and_nothing_else():
    assert decode_image(encoded(Image.new("RGB", (1024, 256))), PIXELS, low_detail=True).size == (512, 128)
    assert decode_image(encoded(drawing()), PIXELS, low_detail=True).size == SIZE


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", Unprocessable, "is empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", Unprocessable, "it is a page of HTML"),
        (b"\n <html>", Unprocessable, "it is a page of HTML"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", Unprocessable, "it is SVG"),
        (b"hello", Unprocessable, "it is none of AVIF, BMP"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", Unprocessable, "it is none of"),
        (encoded(drawing())[:200], Unprocessable, "damaged"),
        (encoded(drawing())[:20], Unprocessable, "cannot be read|damaged"),
        (encoded(drawing(), "JPEG")[:300], Unprocessable, "damaged"),
        (encoded(drawing(), "GIF")[:60], Unprocessable, "cannot be read|damaged"),
        (header_of_png(30_000, 30_000), TooLarge, "at most 1000000 are taken"),
        (header_of_png(1001, 1000), TooLarge, "has 1001 × 1000 pixels; at most 1000000"),
        (header_of_png(1000, 1000), Unprocessable, "damaged"),
    ],
)
def test_what_is_no_image_or_too_large_is_refused(data, error, said):
    with pytest.raises(error, match=said):
        decode_image(data, PIXELS)


def test_an_image_of_the_largest_size_that_is_claimed_is_refused_before_it_is_decoded():
    with pytest.raises(TooLarge):
        decode_image(header_of_png(30_000, 30_000), 89_478_485)


def test_bytes_that_were_changed_at_random_never_raise_anything_else():
    rng = np.random.default_rng(5)
    for form in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = np.frombuffer(encoded(drawing(), form), np.uint8)
        for _ in range(30):
            broken = whole.copy()
            broken[rng.integers(0, len(broken), 5)] = rng.integers(0, 256, 5)
            with contextlib.suppress(TooLarge, Unprocessable):
                assert decode_image(broken.tobytes(), PIXELS).mode == "RGB"


def test_pictures_arrays_and_tensors_are_images_too():
    picture = drawing()
    array = np.asarray(picture)
    for item in (
        picture,
        array,
        torch.from_numpy(array.copy()),
        torch.from_numpy(array.copy()).permute(2, 0, 1),
        np.dstack([array, np.full(array.shape[:2], 255, np.uint8)]),
    ):
        assert np.array_equal(as_image(item, PIXELS), array)
    assert as_image(array[:, :, 0], PIXELS).mode == "RGB"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (5, "got int"),
        (np.zeros((2, 2, 3), np.float32), r"got ndarray of float32 \[2, 2, 3\]"),
        (np.zeros((2, 2, 2, 3), np.uint8), r"got ndarray of uint8 \[2, 2, 2, 3\]"),
        (np.zeros((0, 2, 3), np.uint8), "got ndarray"),
        (torch.zeros(2), r"got Tensor of torch.float32 \[2\]"),
    ],
)
def test_what_is_no_image_in_python_is_refused(item, said):
    with pytest.raises(BadRequest, match=said):
        as_image(item, PIXELS)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_picture_without_pixels_is_refused(size):
    with pytest.raises(Unprocessable, match="has no pixels"):
        as_image(Image.new("RGB", size), PIXELS)


def test_a_picture_of_pillow_keeps_to_the_limit_and_may_be_broken_too(tmp_path):
    with pytest.raises(TooLarge):
        as_image(Image.new("L", (1001, 1000)), PIXELS)
    path = tmp_path / "broken.png"
    path.write_bytes(encoded(drawing())[:200])
    with Image.open(path) as lazy, pytest.raises(Unprocessable, match="damaged"):
        as_image(lazy, PIXELS)


def test_a_picture_that_is_larger_than_any_model_reads_is_averaged_by_a_whole_number(monkeypatch):
    monkeypatch.setattr("quire.media.images.MAX_KEPT_PIXELS", 50)
    image = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    found = decode_image(encoded(image), 1000)
    assert found.size == (5, 5)
    assert np.asarray(found)[0, 0].tolist() == np.floor(np.asarray(image)[:2, :2].mean((0, 1)) + 0.5).tolist()
