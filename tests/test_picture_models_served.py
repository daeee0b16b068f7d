"""LLaVA and Qwen-VL over HTTP, asked with the `openai` client: transformers' answers, wherever a picture comes from."""

import asyncio
import base64
import io
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from llava_rig import CASES, Model, picture
from odd_pictures import encoded, header_of_png
from PIL import Image
from qwen_vl_rig import TWO, Asked, expected, film, tiny
from serving import serving
from web_of_media import web_of_media

from quire import LLM, SamplingParams
from quire.errors import BadRequest
from quire.testing.tiny import byte_tokenizer
from quire.types import Prompt

LENGTH = 12
MORE = {"temperature": 0, "max_tokens": LENGTH, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}MARKER{% else %}<|video_pad|>{% endif %}"
    "{% endfor %}{% endfor %}"
)
CACHE_BYTES = 12_000  # two pictures
PICTURES = [picture(seed, 40, 32) for seed in range(4)]  # which Qwen need not scale


class Llava:
    """What transformers says; conversations are texts and pictures, in their order."""

    name, num_asked = "llava", 0

    def __init__(self, folder):
        self.folder = folder
        self._model = Model(folder, CASES["1.5"])
        byte_tokenizer(folder, TEMPLATE.replace("MARKER", "<image>"))

    def says(self, *parts):
        ids = [id for part in parts for id in (part.encode() if isinstance(part, str) else [262] * 16)]
        pictures = [part for part in parts if not isinstance(part, str)]
        return self._model.greedy(Prompt(token_ids=tuple(ids)), *pictures, count=LENGTH)


class Qwen:
    """The same."""

    name, num_asked = "qwen", 0

    def __init__(self, folder):
        self.folder = folder
        self._tiny = tiny(TWO, folder)
        byte_tokenizer(folder, TEMPLATE.replace("MARKER", "<|image_pad|>"))

    def says(self, *parts):
        text = "".join(
            part if isinstance(part, str) else "<|image_pad|>" if isinstance(part, Image.Image) else "<|video_pad|>"
            for part in parts
        )
        pictures = [part for part in parts if isinstance(part, Image.Image)]
        films = [part for part in parts if isinstance(part, np.ndarray)]
        return expected(self._tiny, Asked(text, pictures, films), LENGTH)[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {kind.name: kind(tmp_path_factory.mktemp(kind.name)) for kind in (Llava, Qwen)}


@pytest.fixture(params=["llava", "qwen"])
def model(request, models):
    return models[request.param]


@pytest.fixture(scope="module")
def web():
    with web_of_media() as made:
        made.files |= {str(i): encoded(image) for i, image in enumerate(PICTURES)}
        made.files["html"] = b"<!doctype html><title>no picture</title>"
        made.targets["0"] = f"{made.url}/file/0"
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "0.png").write_bytes(encoded(PICTURES[0]))
    return folder


@pytest.fixture(scope="module")
def server(models, files):
    names = [f"{name}={model.folder}" for name, model in models.items()]
    flags = ["--limit-mm-per-prompt", "image=3,video=1", "--allowed-local-media-path", files, "--max-media-bytes", "1M"]
    engine = ["--dtype", "float32", "--device", "cpu", "--num-pages", "48", "--max-num-batched-tokens", "24"]
    engine += ["--max-num-seqs", "5", "--encoder-cache-bytes", CACHE_BYTES, "--max-num-encoder-tokens", "32"]
    plugins = ["--plugins", "llama,qwen,llava,qwen-vl"]
    with serving(*names, *plugins, *flags, "--allow-private-media-addresses", *engine) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def url_of(data):
    return "data:;base64," + base64.b64encode(data).decode()


def content(*parts):
    """Messages: texts, and pictures as such, as bytes of files or as URLs; other parts as they are."""
    made = []
    for part in parts:
        value = encoded(part) if isinstance(part, Image.Image) else part
        value = url_of(value) if isinstance(value, bytes) else value
        if isinstance(value, dict):
            made.append(value)
        elif re.match("data:|https?:|file:", value):
            made.append({"type": "image_url", "image_url": {"url": value}})
        else:
            made.append({"type": "text", "text": value})
    return [{"role": "user", "content": made}]


def said(client, model, *parts):
    answer = client.chat.completions.create(model=model.name, messages=content(*parts), **MORE)
    model.num_asked += 1
    return answer.choices[0].token_ids


# --- good ones ---------------------------------------------------------------------------------------


def test_a_picture_is_seen_wherever_it_comes_from(client, model, web, files):
    wanted = model.says("What is ", PICTURES[0], "?")
    assert wanted != model.says("What is ", PICTURES[1], "?")
    for url in (PICTURES[0], f"{web.url}/file/0", f"{web.url}/to/0", f"file://{files}/0.png"):
        assert said(client, model, "What is ", url, "?") == wanted


def test_a_stream_says_the_same(client, model, web):
    wanted = model.says("see ", PICTURES[1], " and ", PICTURES[2])
    parts = content("see ", PICTURES[1], " and ", f"{web.url}/file/2")
    with client.chat.completions.create(model=model.name, messages=parts, **MORE, stream=True) as stream:
        choices = [choice.to_dict() for chunk in stream for choice in chunk.choices]
    model.num_asked += 1
    ids = [id for choice in choices for id in choice.get("token_ids") or []]
    assert ids == wanted


def test_pictures_stand_where_they_are_put(client, model):
    for parts in (
        (PICTURES[0], "at the start"),
        ("at the end", PICTURES[1]),
        (PICTURES[1], " ", PICTURES[0], " ", PICTURES[1]),
        ("a ", PICTURES[2], " b ", PICTURES[0], " c"),
    ):
        assert said(client, model, *parts) == model.says(*parts)


def test_a_video_is_seen(client, models):
    av = pytest.importorskip("av")
    frames, data = film(5, 4, 40, 32), io.BytesIO()
    with av.open(data, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=2)  # which loses nothing
        stream.width, stream.height, stream.pix_fmt = 32, 40, "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    qwen = models["qwen"]
    parts = ("It ", {"type": "video_url", "video_url": {"url": url_of(data.getvalue())}}, " moves")
    assert said(client, qwen, *parts) == qwen.says("It ", frames, " moves")
    with pytest.raises(openai.BadRequestError, match="takes text and image only"):
        said(client, models["llava"], *parts)


def test_the_same_picture_asked_twice_goes_through_the_tower_once(client, server, model):
    new = picture(100, 40, 32)
    before = figures(server, model)
    first = said(client, model, "Is ", new, " new?")
    assert said(client, model, "Is ", new, " new?") == first
    assert said(client, model, "No, ", new, " is old.") == model.says("No, ", new, " is old.")
    after = figures(server, model)
    assert after["media_encoded_total"] == before["media_encoded_total"] + 1
    assert after["encoder_cache_hits_total"] > before["encoder_cache_hits_total"]
    assert after["prefix_cache_hits_total"] > before["prefix_cache_hits_total"]


def figures(server, model):
    """Of the model, by name, once they have what was asked so far: the server looks at them now and then."""
    while True:
        page = httpx.get(f"{server.url}/metrics").text
        found = dict(re.findall(rf'^quire:(\w+){{engine="0",model_name="{model.name}"}} (.*)$', page, re.MULTILINE))
        if float(found["generation_tokens_total"]) == LENGTH * model.num_asked:
            return {name: float(value) for name, value in found.items()}


async def test_two_hundred_at_once_all_get_their_own_answer_and_memory_is_given_back(server, models, web):
    new = [picture(200 + i, 40, 32) for i in range(25)]
    web.files |= {f"new-{i}": encoded(image) for i, image in enumerate(new)}

    async def ask(http, number):
        model, image = models[("llava", "qwen")[number % 2]], number // 2 % len(new)
        url = f"{web.url}/file/new-{image}" if number % 3 else encoded(new[image])
        body = {"model": model.name, "messages": content("What is ", url, "?"), "temperature": 0, "max_tokens": LENGTH}
        answer = await http.post(f"{server.url}/v1/chat/completions", json={**body, **MORE["extra_body"]})
        assert answer.status_code == 200, answer.text
        model.num_asked += 1
        return model, image, answer.json()["choices"][0]["token_ids"]

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        answers = await asyncio.gather(*(ask(http, number) for number in range(200)))
    wanted = {(model, i): model.says("What is ", new[i], "?") for model in models.values() for i in range(len(new))}
    assert [ids for *_, ids in answers] == [wanted[model, image] for model, image, _ in answers]
    for model in models.values():
        found = figures(server, model)
        assert (found["num_requests_running"], found["num_requests_waiting"]) == (0, 0)
        assert found["kv_cache_usage_perc"] == 0
        assert 0 < found["encoder_cache_bytes"] <= CACHE_BYTES


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
    assert [said(client, model, "What is ", ODD[kind](image), "?") for image in PICTURES[:2]] == wanted
    assert wanted[0] != wanted[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 150), (150, 1)])
def test_tiny_and_narrow_pictures_are_seen(client, model, size):
    assert said(client, model, "What is ", picture(1, *size), "?") == model.says("What is ", picture(1, *size), "?")


# --- bad ones ----------------------------------------------------------------------------------------

BAD = {
    "truncated": (lambda web: encoded(PICTURES[0])[:-60], 422, "The image is damaged"),
    "enormous": (lambda web: header_of_png(30_000, 30_000), 413, r"--max-image-pixels"),
    "narrow": (lambda web: encoded(Image.new("RGB", (1, 100_000))), 400, "200"),
    "empty": (lambda web: "data:image/png;base64,", 422, "The image is empty: it has no bytes"),
    "HTML": (lambda web: f"{web.url}/file/html", 422, "it is a page of HTML"),
    "endless": (lambda web: f"{web.url}/endless", 413, r"at most 1048576 bytes \(--max-media-bytes\)"),
    "missing": (lambda web: f"{web.url}/status/404", 422, "answered 404"),
    "elsewhere": (lambda web: "file:///etc/passwd", 400, "does not lie under"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_is_refused_and_the_server_goes_on(client, model, web, kind):
    make, status, message = BAD[kind]
    with pytest.raises(openai.APIStatusError, match=f"image 2 of 2: .*{message}") as caught:
        said(client, model, "What is ", PICTURES[0], make(web), "?")
    assert caught.value.status_code == status
    assert said(client, model, "What is ", PICTURES[0], "?") == model.says("What is ", PICTURES[0], "?")


def test_too_many_pictures_and_markers_without_one_are_refused(client, model):
    with pytest.raises(openai.BadRequestError, match="At most 3 image"):
        said(client, model, *PICTURES, "?")
    marker = "<image>" if model.name == "llava" else "<|image_pad|>"
    with pytest.raises(openai.BadRequestError, match=r"2 times, but `multi_modal_data` has 1 items of image"):
        said(client, model, f"What is {marker} or ", PICTURES[0])


def test_a_redirect_to_this_machine_is_refused(models, monkeypatch):
    """The first host counts as public here; where it redirects to does not."""
    model = models["llava"]
    monkeypatch.setattr("quire.media.addresses.is_public", lambda address: address == "127.0.0.2")
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
        with pytest.raises(BlockingIOError):  # nobody has come
            inside.accept()
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        (output,) = llm.chat(content("What is ", PICTURES[0], "?"), params, use_tqdm=False)
    assert output.outputs[0].token_ids == model.says("What is ", PICTURES[0], "?")


def _redirect(server, target):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
