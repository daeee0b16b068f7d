"""Held-out utterances; what a model writes down of them, and how many are exactly right."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from data.speech.synthesizer import RATE
from data.speech.utterances import Utterance, rows, utter
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from evaluation.reports import shares


def held_out(count: int, seed: str) -> list[Utterance]:
    """So many rows of digits that training never says, by voices that it never heard."""
    rng = random.Random(f"held out:{seed}")
    stream = rows(rng, held_out=True)
    return [utter(next(stream), rng) for _ in range(count)]


@torch.inference_mode()
def write_down(
    model: WhisperForConditionalGeneration,
    processor: WhisperProcessor,
    utterances: Sequence[Utterance],
    batch_size: int = 50,
) -> list[str]:
    """What it hears, greedily."""
    texts: list[str] = []
    for start in range(0, len(utterances), batch_size):
        samples = [utterance.samples for utterance in utterances[start : start + batch_size]]
        features = processor.feature_extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        made = model.generate(features.to(model.dtype), language="en", task="transcribe", do_sample=False)
        texts += processor.batch_decode(made, skip_special_tokens=True)
    return texts


def score(utterances: Sequence[Utterance], texts: Sequence[str]) -> dict[str, float]:
    """Share of exact matches by how many digits there are, and over all as ``overall``."""
    said = [utterance.text for utterance in utterances]
    return shares(sorted((f"{len(right)} digits", right == text) for right, text in zip(said, texts, strict=True)))
