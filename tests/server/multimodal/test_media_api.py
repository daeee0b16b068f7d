"""Pictures in `/v1/chat/completions` and `/tokenize`: what reaches the engine, and how everything wrong is refused."""

import asyncio
import io
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from fake_client import PretendClient, http, info, served
from live_server import live
from media_server import web_of_media
from PIL import Image
from plugin_site import installed
from tenant_rig import headers_of, write_keys
from vision_model import NUM_PATCHES, PLACE, PLUGIN, asking, data_url, png

from quire.hooks import registry
from quire.media.fetching.fetcher import Fetcher
from quire.media.limits import MediaLimits
from quire.media.loader import MediaLoader
from quire.server.app import build_app
from quire.settings.server_config import ServerConfig
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.tiny import CHAT_TEMPLATE

RED, BLUE = data_url(png("red")), data_url(png("blue"))
READS_PARTS = (
    "{% for message in messages %}<|user|>{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}<|assistant|>"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("plugins") / "site", "colours", PLUGIN):
        yield registry.load(["llama", "colours"])


@pytest.fixture
def app_of(found, tmp_path):
    """An application with one model that sees, and the client that pretends to run it."""
    intakes = []

    def app_of(template=CHAT_TEMPLATE, tasks=("generate",), keys=None, **limits):
        client = PretendClient(info(architecture="SeesLlamaForCausalLM", modalities=("image",), tasks=tasks))
        (one,) = served(tmp_path, client.infos, template)
        intakes.append(MediaLoader(MediaLimits(**{"private_addresses": True, **limits})))
        media = MultimodalProcessor(found, one.info, Tokenizer.load(tmp_path), intakes[-1])
        chat = replace(one.template, modalities=("image",), markers=media.markers)
        config = ServerConfig(enable_prompt_tokens_details=True, key_file=keys)
        return build_app(client, config, found, [replace(one, template=chat, media=media)]), client

    yield app_of
    for loader in intakes:
        loader.close()


async def post(app, messages, path="/v1/chat/completions", **fields):
    async with http(app) as client:
        return await client.post(path, json={"model": "tiny", "messages": messages, **fields})


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, READS_PARTS])
async def test_pictures_take_their_places_in_the_prompt(app_of, template):
    app, client = app_of(template)
    answer = await post(app, asking({"url": RED}, "a", {"url": BLUE}, "b"), max_tokens=4)
    assert answer.status_code == 200
    between = b"\n" if template is CHAT_TEMPLATE else b""
    patches = [PLACE] * NUM_PATCHES
    (prompt,) = (request.prompt for request in client.requests)
    ids = [258, *patches, *between, 97, *between, *patches, *between, 98]
    ids += [256, 259] if template is CHAT_TEMPLATE else [259]
    assert list(prompt.token_ids) == ids
    assert [medium.start for medium in prompt.media] == [1, 6 + 2 * len(between)]
    assert prompt.media_use == (2, len(png("red")) + len(png("blue")), 0.0)
    for medium, colour in zip(prompt.media, ([1, 0, 0], [0, 0, 1]), strict=True):
        assert torch.equal(medium.tensors["patches"], torch.tensor([colour] * NUM_PATCHES, dtype=torch.float32))
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3, "multimodal_tokens": 8}


async def test_media_of_a_tenant_have_its_number_of_bytes_at_most(app_of, tmp_path):
    size = len(png("red"))
    tenants = {"t": {"max_media_bytes": 2 * size}}
    write_keys(
        tmp_path / "keys.yaml", tenants, {"k": {"tenant": "t"}, "less": {"tenant": "t", "max_media_bytes": size}}
    )
    app, pretend = app_of(keys=str(tmp_path / "keys.yaml"))
    body = {"model": "tiny", "messages": asking({"url": RED}, "a", {"url": RED}), "max_tokens": 1}
    async with http(app) as client:
        answers = [
            await client.post("/v1/chat/completions", json=body, headers=headers_of(key)) for key in ("k", "less")
        ]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert f"at most {size} bytes with this API key; these have {2 * size}" in answers[1].text
    assert len(pretend.requests) == 1


async def test_usage_of_text_alone_says_nothing_of_media(app_of):
    app, _ = app_of()
    answer = await post(app, asking("hi"), max_tokens=4)
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_a_stream_tells_the_tokens_of_media_too(app_of):
    app, _ = app_of()
    asked = {"max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    answer = await post(app, asking({"url": RED}, "a"), **asked)
    assert answer.status_code == 200
    assert '"multimodal_tokens":4' in answer.text


async def test_pictures_come_from_the_web_from_files_and_from_urls_with_data(app_of, tmp_path):
    (tmp_path / "a.png").write_bytes(png("blue"))
    with web_of_media() as web:
        web.files["a"] = png("blue")
        app, client = app_of(allowed_folder=tmp_path.resolve())
        for url in (BLUE, f"{web.url}/file/a", f"file://{tmp_path}/a.png"):
            assert (await post(app, asking({"url": url}), max_tokens=1)).status_code == 200
    assert len({request.prompt.media[0].digest for request in client.requests}) == 1


async def test_low_detail_is_a_smaller_picture(app_of):
    app, client = app_of()
    noise, data = np.random.default_rng(0).integers(0, 256, (700, 600, 3), np.uint8), io.BytesIO()
    Image.fromarray(noise).save(data, "BMP")
    for detail in ("low", "high", "auto"):
        picture = {"url": data_url(data.getvalue()), "detail": detail}
        assert (await post(app, asking(picture), max_tokens=1)).status_code == 200
    low, high, auto = (request.prompt.media[0].digest for request in client.requests)
    assert low != high == auto


async def test_tokenize_counts_the_ids_of_media(app_of):
    app, _ = app_of()
    answer = await post(app, asking({"url": RED}, "a"), "/tokenize")
    assert answer.json()["tokens"] == [258, *[PLACE] * NUM_PATCHES, 10, 97, 256, 259]
    assert answer.json()["count"] == 9
    assert (await post(app, asking({"url": "data:,"}), "/tokenize")).status_code == 422


HTML = "data:image/png,<html></html>"


@pytest.mark.parametrize(
    ("parts", "status", "kind", "said"),
    [
        ([{"url": "data:,"}], 422, "UnprocessableEntityError", "The image is empty"),
        ([{"url": HTML}], 422, "UnprocessableEntityError", "a page of HTML"),
        ([{"url": RED}, {"url": data_url(png()[:40])}], 422, "UnprocessableEntityError", "image 2 of 2: The image"),
        ([{"url": data_url(png(size=(400, 400)))}], 413, "RequestTooLarge", "has 400 × 400 pixels"),
        ([{"url": "data:;base64," + "A" * 9000}], 413, "RequestTooLarge", "at most 5000 bytes"),
        ([{"url": "data:;base64,*"}], 400, "BadRequestError", "base64 of the medium is broken"),
        ([{"url": "file:///etc/passwd"}], 400, "BadRequestError", "file: URLs are not allowed"),
        ([{"url": "/etc/passwd"}], 400, "BadRequestError", "must begin with http:"),
        ([{"url": "ftp://x/y"}], 400, "BadRequestError", "must begin with http:"),
        ([{"url": "http://127.0.0.1:9/"}], 400, "BadRequestError", "private network"),
        ([{"url": RED}] * 4, 400, "BadRequestError", "At most 3 image item(s)"),
        ([{"url": RED, "detail": "most"}], 400, "BadRequestError", "`detail`"),
        ([{}], 400, "BadRequestError", "must be a URL"),
        ([{"url": RED}, "an <image> and an <image>"], 400, "BadRequestError", "3 times, but `multi_modal_data` has 1"),
    ],
)
async def test_a_picture_that_cannot_be_taken_is_refused_and_the_server_goes_on(app_of, parts, status, kind, said):
    app, client = app_of(
        private_addresses=False, max_bytes=5000, max_image_pixels=10_000, items={"image": 3}, max_redirects=0
    )
    answer = await post(app, asking(*parts), max_tokens=1)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, "messages", status)
    assert said in error["message"]
    assert client.requests == []
    assert (await post(app, asking({"url": RED}), max_tokens=1)).status_code == 200


async def test_a_template_that_drops_a_picture_is_found_out(app_of):
    app, _ = app_of("{% for message in messages %}{% for p in message.content %}{{ p.text }}{% endfor %}{% endfor %}")
    answer = await post(app, asking({"url": RED}, "a"), max_tokens=1)
    assert answer.status_code == 400
    assert "the marker '<image>' 0 times, but `multi_modal_data` has 1 items" in answer.json()["error"]["message"]


async def test_a_picture_that_makes_the_prompt_too_long_is_refused(app_of):
    app, _ = app_of()
    answer = await post(app, asking({"url": RED}, "x" * 122), max_tokens=1)
    assert answer.status_code == 400
    assert "maximum context length is 128 tokens" in answer.json()["error"]["message"]


class Endless:
    """In the place of what fetches: it never ends by itself."""

    def __init__(self):
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def fetch(self, *_):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.fixture
def endless(monkeypatch):
    made = Endless()
    monkeypatch.setattr(Fetcher, "fetch", made.fetch)
    return made


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/embeddings"])
async def test_nothing_is_fetched_for_a_client_that_is_gone(app_of, endless, path):
    app, client = app_of(tasks=("generate", "embed"))
    async with live(app) as (url, _), httpx.AsyncClient() as asking:
        body = {"model": "tiny", "messages": asking_of("http://example.org/a.png")}
        answer = asyncio.create_task(asking.post(url + path, json=body, timeout=60))
        await endless.begun.wait()
        answer.cancel()
        await endless.ended.wait()
    assert client.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/embeddings"])
async def test_a_shutdown_refuses_what_still_waits_for_its_media(app_of, endless, path):
    app, client = app_of(tasks=("generate", "embed"))
    async with live(app) as (url, server), httpx.AsyncClient() as asking:
        body = {"model": "tiny", "messages": asking_of("http://example.org/a.png")}
        answer = asyncio.create_task(asking.post(url + path, json=body, timeout=60))
        await endless.begun.wait()
        server.stop()
        assert (await answer).status_code == 503
        assert "shutting down" in (await answer).json()["error"]["message"]
    assert endless.ended.is_set()
    assert client.requests == []


def asking_of(url):
    return asking({"url": url}, "what?")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url"])
async def test_a_model_of_text_only_says_so(tmp_path, kind):
    client = PretendClient()
    app = build_app(client, ServerConfig(), registry.load(["llama"]), served(tmp_path, client.infos))
    answer = await post(app, [{"role": "user", "content": [{"type": kind, kind: {"url": RED}}]}])
    assert answer.status_code == 400
    assert f"is of type '{kind}', but this model takes text only" in answer.json()["error"]["message"]
