"""Everything that an item may be becomes decoded media, within the limits of a prompt."""

import asyncio
import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from media_server import web_of_media
from PIL import Image

from quire.errors import BadRequest, ConfigError, Overloaded, TooLarge, Unprocessable
from quire.media import loader as module
from quire.media.items import MediaBytes, MediaURL
from quire.media.limits import MediaLimits
from quire.media.loader import MediaLoader
from quire.records import InputMapper, Registry
from quire.settings.model_config import ModelConfig

PICTURE = Image.new("RGB", (5, 4), (10, 200, 30))


def png(image=PICTURE):
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def data_url(data=None):
    return "data:image/png;base64," + base64.b64encode(data or png()).decode()


@pytest.fixture
def intake_of():
    made = []

    def intake_of(**limits):
        made.append(MediaLoader(MediaLimits(private_addresses=True, **limits)))
        return made[-1]

    yield intake_of
    for one in made:
        one.close()


@pytest.fixture
def web():
    with web_of_media() as made:
        made.files["a.png"] = png()
        yield made


def test_every_form_of_an_image_becomes_the_same_picture(web, intake_of, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png())
    intake = intake_of(allowed_folder=tmp_path)
    urls = [f"{web.url}/file/a.png", data_url(), f"file://{path}"]
    items = [*urls, *(MediaURL(url=url) for url in urls), str(path), path, png(), PICTURE, np.asarray(PICTURE)]
    fetched = intake.fetch_sync({"image": items, "points": ["as it is"]}, "prompt")
    assert fetched["points"] == ["as it is"]
    for item in fetched["image"]:
        assert np.array_equal(intake.decode("image", item), PICTURE)
    assert intake.decode("points", "as it is") == "as it is"


async def test_items_are_fetched_beside_the_event_loop_and_within_one(web, intake_of):
    intake = intake_of()
    items = {"image": [MediaURL(url=f"{web.url}/file/a.png", low_detail=True), PICTURE]}
    fetched = await intake.fetch(items, "messages")
    assert fetched == {"image": [MediaBytes(data=png(), low_detail=True), PICTURE]}
    assert intake.fetch_sync(items, "messages") == fetched  # in a thread with a running loop, as in a notebook
    assert await intake.run(lambda: intake.decode("image", fetched["image"][0]).size) == (5, 4)


def test_links_of_conversations_are_urls_and_never_paths(intake_of, tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    for url in (str(tmp_path / "a.png"), "a.png", "ftp://x/a.png", "blob:abc", "javascript:1", ""):
        with pytest.raises(BadRequest, match=r"must begin with http:, https:, data: or file:"):
            intake_of().fetch_sync({"image": [MediaURL(url=url)]}, "messages")


def test_an_error_says_which_item_it_was(intake_of):
    intake = intake_of()
    with pytest.raises(BadRequest, match=r"^image 2 of 2: The base64") as caught:
        intake.fetch_sync({"image": [data_url(), "data:;base64,*"]}, "messages")
    assert caught.value.param == "messages"
    with pytest.raises(BadRequest, match=r"^The base64"):
        intake.fetch_sync({"image": ["data:;base64,*"]}, "messages")


def test_all_items_of_a_prompt_share_one_limit_of_bytes(intake_of):
    size = len(png())
    assert len(intake_of(max_bytes=2 * size).fetch_sync({"image": [png(), data_url()]}, "prompt")["image"]) == 2
    with pytest.raises(TooLarge, match=f"at most {2 * size - 1} bytes"):
        intake_of(max_bytes=2 * size - 1).fetch_sync({"image": [png(), data_url()]}, "prompt")


def test_more_items_than_the_limit_are_refused_modality_by_modality(intake_of):
    intake = intake_of(items={"image": 2, "video": 0})
    intake.check_count("image", 2, "messages")
    intake.check_count("audio", 64, "messages")
    for modality, count, most in (("image", 3, 2), ("video", 1, 0), ("audio", 65, 64)):
        with pytest.raises(BadRequest, match=rf"At most {most} {modality} .*\(--limit-mm-per-prompt\); got {count}"):
            intake.check_count(modality, count, "messages")


def test_too_many_waiting_items_are_refused_at_once(intake_of, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    intake = intake_of()
    for _ in range(2):  # what was refused or has failed waits no longer
        with pytest.raises(Overloaded):
            intake.fetch_sync({"image": [data_url()] * 3}, "messages")
        with pytest.raises(BadRequest):
            intake.fetch_sync({"image": ["data:;base64,*"] * 2}, "messages")
    assert len(intake.fetch_sync({"image": [data_url()] * 2}, "messages")["image"]) == 2


def test_when_one_item_fails_the_others_are_not_waited_for(web, intake_of):
    with pytest.raises(Unprocessable, match="image 2 of 2: The server of the media URL answered 404"):
        intake_of(timeout_s=60).fetch_sync({"image": [f"{web.url}/slow", f"{web.url}/status/404"]}, "messages")


def test_several_threads_may_take_in_media(web, intake_of):
    intake = intake_of()

    def sizes(_):
        (item,) = intake.fetch_sync({"image": [f"{web.url}/file/a.png"]}, "prompt")["image"]
        return intake.decode("image", item).size

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(sizes, range(24))) == {(5, 4)}


async def test_what_is_at_hand_does_not_wait_for_what_is_fetched(web, intake_of, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MAX_FETCHES", 1)
    (tmp_path / "a.png").write_bytes(png())
    intake = intake_of(timeout_s=60, allowed_folder=tmp_path)
    slow = asyncio.create_task(intake.fetch({"image": [MediaURL(url=f"{web.url}/slow")]}, "messages"))
    at_hand = [MediaURL(url=data_url()), MediaURL(url=f"file://{tmp_path}/a.png"), png(), tmp_path / "a.png"]
    assert len((await intake.fetch({"image": at_hand}, "messages"))["image"]) == 4
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])


async def test_more_prompts_than_there_are_places_all_come_through(web, intake_of, monkeypatch):
    intake = intake_of()
    items = {"image": [MediaURL(url=f"{web.url}/file/a.png")] * 3}
    every = await asyncio.gather(*(intake.fetch(items, "messages") for _ in range(12)))
    assert all(len(one["image"]) == 3 for one in every)


def test_limits_come_from_the_settings_of_a_model(tmp_path):
    config = ModelConfig(
        limit_mm_per_prompt={"image": 4, "video": {"count": 1}},
        allowed_local_media_path=str(tmp_path / ".." / tmp_path.name),
        allowed_media_domains=("Media.Example",),
        allow_private_media_addresses=True,
        max_media_bytes=5,
        max_image_pixels=6,
        max_media_seconds=7.5,
        max_video_frames=8,
        media_timeout_s=9,
        max_media_redirects=0,
    )
    assert MediaLimits.from_config(config, Registry()) == MediaLimits(
        items={"image": 4, "video": 1},
        max_bytes=5,
        max_image_pixels=6,
        timeout_s=9,
        max_redirects=0,
        max_s=7.5,
        max_frames=8,
        allowed_folder=tmp_path.resolve(),
        allowed_domains=frozenset({"media.example"}),
        private_addresses=True,
    )
    assert MediaLimits.from_config(ModelConfig(), Registry()) == MediaLimits()


def test_a_modality_of_a_plugin_may_have_a_limit_too():
    mapper = InputMapper(name="a", architecture="B", modality="points", build=lambda context: None)
    registry = Registry(records={"quire_input_mappers": {"a": mapper}})
    assert MediaLimits.from_config(ModelConfig(limit_mm_per_prompt={"points": 3}), registry).max_items("points") == 3
    with pytest.raises(ConfigError, match="there are audio, image, points, video"):
        MediaLimits.from_config(ModelConfig(limit_mm_per_prompt={"point": 3}), registry)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limit_mm_per_prompt": {"image": -1}}, "image must be a number of items"),
        ({"limit_mm_per_prompt": {"image": True}}, "image must be a number of items"),
        ({"limit_mm_per_prompt": {"image": {"width": 5}}}, "image must be a number of items"),
        ({"limit_mm_per_prompt": {"imgae": 2}}, "there is no modality 'imgae'; there are audio, image, video"),
        ({"allowed_local_media_path": "/nowhere/at/all"}, "is not a folder"),
        ({"max_image_pixels": 10**9}, "must be at most 178956970"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        MediaLimits.from_config(ModelConfig(**settings), Registry())
