"""Unusual images are read, bad ones are refused, and the server goes on."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from llava_rig import picture
from PIL import Image
from unusual_images import encoded, header_of_png
from vision_server import LENGTH, PICTURES, content, generated_ids

from quire import LLM, SamplingParams
from quire.errors import BadRequest

# --- odd ones ----------------------------------------------------------------------------------------


def turned(image):
    """A file whose orientation says how to turn what it holds to get the picture."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(image.transpose(Image.Transpose.ROTATE_90), exif=exif)


def grey_of_16_bits(image):
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256 + 77)


ODD = {
    "animated GIF": lambda image: encoded(
        image.quantize(16), "GIF", save_all=True, append_images=[PICTURES[3].quantize(16)], duration=10
    ),
    "CMYK": lambda image: encoded(image.convert("CMYK"), "TIFF"),
    "grey of 16 bits": lambda image: encoded(grey_of_16_bits(image)),
    "EXIF rotation": turned,
}


PLAIN = {
    "animated GIF": lambda image: image.quantize(16).convert("RGB"),
    "CMYK": lambda image: image.convert("CMYK").convert("RGB"),
    "grey of 16 bits": lambda image: image.convert("L").convert("RGB"),
    "EXIF rotation": lambda image: image,
}
"""What they show."""


@pytest.mark.parametrize("kind", ODD)
def test_odd_pictures_are_seen_as_what_they_show(client, model, kind):
    wanted = [model.says("What is ", PLAIN[kind](image), "?") for image in PICTURES[:2]]
    assert [generated_ids(client, model, "What is ", ODD[kind](image), "?") for image in PICTURES[:2]] == wanted
    assert wanted[0] != wanted[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 150), (150, 1)])
def test_tiny_and_narrow_pictures_are_seen(client, model, size):
    assert generated_ids(client, model, "What is ", picture(1, *size), "?") == model.says(
        "What is ", picture(1, *size), "?"
    )


# --- bad ones ----------------------------------------------------------------------------------------

BAD = {
    "truncated": (lambda web: encoded(PICTURES[0])[:-60], 422, "The image is damaged"),
    "enormous": (lambda web: header_of_png(30_000, 30_000), 413, r"--max-image-pixels"),
    "narrow": (lambda web: encoded(Image.new("RGB", (1, 100_000))), 400, "200"),
    "empty": (lambda web: "data:image/png;base64,", 422, "The image is empty: it has no bytes"),
    "HTML": (lambda web: f"{web.url}/file/html", 422, "it is a page of HTML"),
    "endless": (lambda web: f"{web.url}/endless", 413, r"at most 1048576 bytes \(--max-media-bytes\)"),
    "missing": (lambda web: f"{web.url}/status/404", 422, "answered 404"),
    "elsewhere": (lambda web: "file:///etc/passwd", 400, "is not under"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_is_refused_and_the_server_goes_on(client, model, web, kind):
    make, status, message = BAD[kind]
    with pytest.raises(openai.APIStatusError, match=f"image 2 of 2: .*{message}") as caught:
        generated_ids(client, model, "What is ", PICTURES[0], make(web), "?")
    assert caught.value.status_code == status
    assert generated_ids(client, model, "What is ", PICTURES[0], "?") == model.says("What is ", PICTURES[0], "?")


def test_too_many_pictures_and_markers_without_one_are_refused(client, model):
    with pytest.raises(openai.BadRequestError, match="At most 3 image"):
        generated_ids(client, model, *PICTURES, "?")
    marker = "<image>" if model.name == "llava" else "<|image_pad|>"
    with pytest.raises(openai.BadRequestError, match=r"2 times, but `multi_modal_data` has 1 items of image"):
        generated_ids(client, model, f"What is {marker} or ", PICTURES[0])


def test_a_redirect_to_this_machine_is_refused(models, monkeypatch):
    """The first host counts as public here; where it redirects to does not."""
    model = models["llava"]
    monkeypatch.setattr("quire.media.fetching.addresses.is_public", lambda address: address == "127.0.0.2")
    settings = {"plugins": "llama,llava", "dtype": "float32", "device": "cpu", "num_pages": 16}
    with (
        socket.create_server(("127.0.0.1", 0)) as inside,
        socket.create_server(("127.0.0.2", 0)) as outside,
        ThreadPoolExecutor(1) as thread,
        LLM(str(model.folder), **settings) as llm,
    ):
        target = f"http://127.0.0.1:{inside.getsockname()[1]}/"
        redirected = thread.submit(_redirect, outside, target)
        url = f"http://127.0.0.2:{outside.getsockname()[1]}/"
        with pytest.raises(BadRequest, match=r"'127\.0\.0\.1' of the media URL is in a private network"):
            llm.chat(content("What is ", url, "?"), use_tqdm=False)
        redirected.result(30)
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection was made
            inside.accept()
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        (output,) = llm.chat(content("What is ", PICTURES[0], "?"), params, use_tqdm=False)
    assert output.outputs[0].token_ids == model.says("What is ", PICTURES[0], "?")


def _redirect(server, target):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
