"""Parts of chat messages that are media: what of them is fetched, and what is refused."""

from typing import Any

import pytest
from PIL import Image

from quire.errors import BadRequest
from quire.media.items import MediaURL
from quire.text.chat.messages import check_conversation

PICTURE = Image.new("RGB", (2, 2))


@pytest.mark.parametrize(
    ("part", "modality", "item"),
    [
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
            "image",
            MediaURL(url="u", low_detail=True),
        ),
        ({"type": "image_url", "image_url": "u", "uuid": "7"}, "image", MediaURL(url="u")),
        ({"type": "input_image", "image_url": "u", "detail": "high"}, "image", MediaURL(url="u")),
        ({"type": "input_image", "image_url": "u", "detail": "low"}, "image", MediaURL(url="u", low_detail=True)),
        ({"type": "image", "image": "u"}, "image", MediaURL(url="u")),
        ({"type": "image", "url": "u"}, "image", MediaURL(url="u")),
        ({"type": "image_pil", "image_pil": PICTURE}, "image", PICTURE),
        ({"type": "image", "image": PICTURE}, "image", PICTURE),
        ({"type": "video_url", "video_url": {"url": "u"}}, "video", MediaURL(url="u")),
        ({"type": "audio_url", "audio_url": {"url": "u"}}, "audio", MediaURL(url="u")),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "audio",
            MediaURL(url="data:;base64,AAAA"),
        ),
    ],
)
def test_every_kind_of_part_with_a_medium_is_read(part: dict[str, Any], modality: str, item: Any) -> None:
    made = check_conversation([{"role": "user", "content": [part]}], modalities=("image", "audio", "video"))
    assert made.items == {modality: [item]}
    assert made.messages[0]["content"] == [{"type": modality}]


def test_a_modality_of_a_plugin_has_a_part_of_its_name_whose_item_is_left_as_it_is() -> None:
    part = {"type": "points", "points": [[1, 2, 3]]}
    made = check_conversation([{"role": "user", "content": [part]}], modalities=("points",))
    assert made.items == {"points": [[[1, 2, 3]]]}
    assert made.messages[0]["content"] == [{"type": "points"}]


@pytest.mark.parametrize(
    "part", [{"type": "points"}, {"type": "points", "points": None}, {"type": "waves", "waves": 1}]
)
def test_a_part_of_a_plugins_modality_without_an_item_or_of_another_modality_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"content\[0\]"):
        check_conversation([{"role": "user", "content": [part]}], modalities=("points",))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url"}, r"messages\[0\].content\[0\].image_url` must be a URL"),
        ({"type": "image_url", "image_url": {"url": None}, "uuid": "7"}, r"image_url.url` must be a URL"),
        ({"type": "image_url", "image_url": {"url": ["u"]}}, "must be a URL"),
        ({"type": "image_url", "image_url": 5}, "must be a URL"),
        ({"type": "image", "image": [[1, 2]]}, "must be a URL"),
        ({"type": "image_pil", "image_pil": "u"}, "must be a URL"),
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "most"}},
            "must be one of auto, low, high, original",
        ),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "is of type 'image_embeds', but this model takes text and"),
        ({"type": "video_url", "video_url": {"url": "u"}}, "takes text and image and audio only"),
        ({"type": "input_audio", "input_audio": {"data": 5}}, "must be an object with base64 as `data`"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": 5}}, "format` must be a string"),
    ],
)
def test_a_part_that_names_no_medium_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        check_conversation([{"role": "user", "content": [part]}], modalities=("image", "audio"))
    assert caught.value.param == "messages"
