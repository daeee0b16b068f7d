"""What each adapter of the demo chat model is trained and evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from data.chat.adapter_styles import VOICES
from data.chat.conversations import Message, Question, held_out_questions, training_conversations
from data.retrieval.readings import held_out_readings, training_readings


@dataclass(frozen=True)
class Lesson:
    """conversations(seed): an endless stream to train on. questions(count, seed): held out from it."""

    conversations: Callable[[int | str], Iterator[list[Message]]]
    questions: Callable[[int, int | str], list[Question]]


LESSONS = {
    **{
        name: Lesson(partial(training_conversations, voice=voice), partial(held_out_questions, voice=voice))
        for name, voice in VOICES.items()
    },
    "reader": Lesson(training_readings, held_out_readings),
}
