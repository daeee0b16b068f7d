"""Parts, media and reasoning of messages as templates read them."""

from typing import Any

import pytest
from chat_templates import PARTS, PICTURE, USER, chat

from quire.errors import BadRequest
from quire.media.items import MediaURL
from quire.text.chat.messages import Conversation, check_conversation
from quire.text.chat.template_pool import TemplatePool

pytestmark = pytest.mark.process

# --- messages --------------------------------------------------------------------------------------


def test_parts_of_text_become_what_the_template_reads(renderer: TemplatePool) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}]
    assert chat(renderer, "{{ messages[0].content }}").render(parts) == "a\nb"
    assert chat(renderer, PARTS).render(parts) == "user:ab"
    assert chat(renderer, PARTS).render([USER]) == "user:What is 2 + 2?"
    both = (
        "{% set c = messages[0].content %}{% if c is string %}S{{ c }}{% else %}"
        "{% for p in c %}P{{ p.text }}{% endfor %}{% endif %}"
    )
    assert chat(renderer, both).render([USER]) == "SWhat is 2 + 2?"
    assert chat(renderer, both).render(parts) == "PaPb"


def test_media_are_listed_in_order_for_models_that_take_them(renderer: TemplatePool) -> None:
    content = [PICTURE, {"type": "text", "text": "What?"}, PICTURE]
    made = check_conversation([{"role": "user", "content": content}], modalities=("image",))
    assert made.items == {"image": [MediaURL(url="data:,")] * 2}
    assert chat(renderer, PARTS, modalities=("image",)).render(made) == "user:<image>What?<image>"


def test_who_wants_a_text_alone_loses_no_media_in_silence(renderer: TemplatePool) -> None:
    with pytest.raises(BadRequest, match="Messages with image cannot be used here"):
        chat(renderer, PARTS, modalities=("image",)).render([{"role": "user", "content": [PICTURE]}])


def test_media_are_markers_for_templates_that_read_content_as_one_text(renderer: TemplatePool) -> None:
    def rendered(*parts: str) -> str:
        content = [PICTURE if part == "*" else {"type": "text", "text": part} for part in parts]
        made = check_conversation([{"role": "user", "content": content}], modalities=("image",))
        return text_only.render(made)

    text_only = chat(renderer, "{{ messages[0].content }}", modalities=("image",), markers={"image": "<img>"})
    assert rendered("*", "What?") == "<img>\nWhat?"
    assert rendered("a", "*", "b", "*") == "a\n<img>\nb\n<img>"
    assert rendered("*", "Is <img> like <img>?", "*") == "Is <img> like <img>?"
    assert rendered("*", "Is <img> like <img>?") == "<img>\nIs <img> like <img>?"  # is refused when it is tokenized


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "non-empty list"),
        ("hi", "non-empty list"),
        ([], "non-empty list"),
        (["hi"], r"messages\[0\]` must be an object"),
        ([{"content": "hi"}], "role"),
        ([{"role": 5, "content": "hi"}], "role"),
        ([{"role": "user", "content": 5}], "string or a list of parts"),
        ([{"role": "user", "content": [5]}], "object with a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must be a string"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "takes text only"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "takes text only"),
        ([{"role": "assistant", "tool_calls": "x"}], "must be a list"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "with a name"),
        ([USER] * 5000, "at most"),
    ],
)
def test_wrong_messages_are_refused_with_a_sentence(messages: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        check_conversation(messages)
    assert caught.value.param == "messages"


def test_reasoning_has_every_name_that_templates_use() -> None:
    made: Conversation = check_conversation([{"role": "assistant", "content": "4", "reasoning": "2 + 2"}])
    assert {made.messages[0][name] for name in ("reasoning", "reasoning_content", "thinking")} == {"2 + 2"}


def test_values_that_are_no_json_are_refused(renderer: TemplatePool) -> None:
    with pytest.raises(BadRequest, match="only JSON values"):
        chat(renderer).render([USER], kwargs={"x": object()})
