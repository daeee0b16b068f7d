"""Batches to train the demo Whisper on: utterances as frames, what is to be written, and who says what when."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from models.whisper_tokenizer import ENGLISH, NO_SPEECH, START, STEP, TASKS, TRANSCRIBE, ids_of, written
from torch import Tensor
from transformers import WhisperProcessor

from data.speech.synthesizer import RATE
from data.speech.utterances import SECONDS, Utterance, rows, silence, utter

IGNORED = -100
"""No answer is wanted there."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """features [rows, mels, frames]. tokens, and what should follow each, int64 [rows, length]. said: the digit that is
    being said while an encoder's row lasts, 10 for none, int64 [rows, encoder's rows]."""

    features: Tensor
    tokens: Tensor
    wanted: Tensor
    said: Tensor


class Teacher(torch.utils.data.Dataset[Lesson]):
    """The lesson of each step, always the same for the same seed."""

    def __init__(self, processor: WhisperProcessor, seed: int, size: int, steps: int) -> None:
        self._processor, self._seed, self._size, self._steps = processor, seed, size, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Lesson:
        rng = random.Random(f"{self._seed}:{step}")
        stream = rows(rng, held_out=False)
        heard = [silence(rng) if rng.random() < 0.03 else utter(next(stream), rng) for _ in range(self._size)]
        made = self._processor.feature_extractor(
            [utterance.samples for utterance in heard], sampling_rate=RATE, return_tensors="pt"
        )
        lines = [self._line(utterance, rng) for utterance in heard]
        length = max(len(tokens) for tokens, _ in lines)
        end = self._processor.tokenizer.eos_token_id
        return Lesson(
            features=made["input_features"],
            tokens=torch.tensor([tokens + [end] * (length - len(tokens)) for tokens, _ in lines]),
            wanted=torch.tensor([wanted + [IGNORED] * (length - len(wanted)) for _, wanted in lines]),
            said=torch.stack([said(utterance) for utterance in heard]),
        )

    def _line(self, utterance: Utterance, rng: random.Random) -> tuple[list[int], list[int]]:
        task = TRANSCRIBE if rng.random() < 0.8 else TASKS[1]
        previous = "".join(rng.choices("0123456789", k=rng.randint(1, 8))) if rng.random() < 0.1 else ""
        prompt, answer = written(utterance, task, rng.random() < 0.4, previous)
        tokens = ids_of(self._processor.tokenizer, [*prompt, *answer])
        wanted = [IGNORED] * (len(prompt) - 1) + tokens[len(prompt) :]
        language = ENGLISH if utterance.text else NO_SPEECH
        wanted[prompt.index(START)] = ids_of(self._processor.tokenizer, [language])[0]
        return tokens[:-1], wanted


def said(utterance: Utterance) -> Tensor:
    """Int64 [encoder's rows]: the digit that is being said, 10 for none."""
    found = torch.full((round(SECONDS / STEP),), 10)
    for digit, (begin, end) in zip(utterance.text, utterance.spans, strict=True):
        found[round(begin / STEP) : round(end / STEP)] = int(digit)
    return found
