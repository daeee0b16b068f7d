"""Tiny LLaVA and Qwen-VL models for a server, and what transformers answers."""

import base64
import re

import numpy as np
from llava_rig import CASES, Model, picture
from PIL import Image
from qwen_vl_rig import TWO, Asked, expected, tiny
from unusual_images import encoded

from quire.types import Prompt
from quire_testing.tiny import byte_tokenizer

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


def generated_ids(client, model, *parts):
    answer = client.chat.completions.create(model=model.name, messages=content(*parts), **MORE)
    model.num_asked += 1
    return answer.choices[0].token_ids
