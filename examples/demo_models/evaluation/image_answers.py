"""Held-out pictures with a question each; greedy answers of a model, and how many are exactly right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from data.images.drawing import draw
from data.images.picture_questions import KINDS, PictureQuestion, ask
from data.images.scenes import Scene, held_out_scenes
from PIL import Image
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from evaluation.reports import shares


@dataclass(frozen=True, kw_only=True)
class Example:
    """A picture of a scene and a question about it."""

    scene: Scene
    picture: Image.Image
    question: PictureQuestion


def held_out(count: int, seed: str, *, new: bool = False) -> list[Example]:
    """So many pictures that training never shows; the kinds of questions in turn, one question to a picture."""
    rng = random.Random(f"held out:{seed}")
    stream = held_out_scenes(rng, new=new)
    kinds, examples = tuple(KINDS), []
    while len(examples) < count:
        scene = next(stream)
        if question := ask(kinds[len(examples) % len(kinds)], scene, rng):
            examples.append(Example(scene=scene, picture=draw(scene, rng), question=question))
    return examples


@torch.inference_mode()
def answer(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, examples: Sequence[Example], batch_size: int = 50
) -> list[str]:
    """Answer every question greedily."""
    answers: list[str] = []
    for start in range(0, len(examples), batch_size):
        chosen = examples[start : start + batch_size]
        chats = [
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": example.question.text}]}]
            for example in chosen
        ]
        batch = processor(
            images=[example.picture for example in chosen],
            text=processor.apply_chat_template(chats, add_generation_prompt=True),
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        output = model.generate(**batch, max_new_tokens=80, do_sample=False)
        new = output[:, batch["input_ids"].shape[1] :]
        answers += processor.batch_decode(new, skip_special_tokens=True)
    return answers


def score(examples: Sequence[Example], answers: Sequence[str]) -> dict[str, float]:
    """Share of exact matches per kind of question, and over all as ``overall``."""
    asked = [example.question for example in examples]
    return shares((question.kind, text == question.answer) for question, text in zip(asked, answers, strict=True))
