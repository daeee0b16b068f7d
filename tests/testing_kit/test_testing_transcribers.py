"""The check of transcribers accepts a correct one, and names the fault of others."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from quire.errors import BadRequest
from quire.records import Context, LanguageDetection, Segment, SpeechTask, Transcriber
from quire_testing import check_transcriber

VOCAB = 100
ANSWERS = [[1, 2, 3, 4]]


class Asks:
    """A transcriber of two languages, with one fault."""

    window_s = 30.0
    languages: Mapping[str, str] = {"en": "English", "de": "German"}

    def __init__(self, fault: str, context: Context) -> None:
        self.fault = fault
        self.sampling_rate = 0 if fault == "no rate" else 16_000
        self.numbers = count()

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        if task.timestamps or self.fault == "refuses":
            raise BadRequest("Not here.")
        if self.fault == "changes its prompt":
            return [next(self.numbers)]
        return [VOCAB if self.fault == "beyond the vocabulary" else 7]

    def language_detection(self) -> LanguageDetection:
        languages = {5: "en", 6: "fr" if self.fault == "unknown language" else "de"}
        return LanguageDetection(prompt_ids=[4], languages=languages)

    def params(self, task: SpeechTask) -> Mapping[str, Any]:
        return {"max_tokens": 0.5 if self.fault == "wrong parameters" else 10}

    def segments(self, token_ids: Sequence[int], task: SpeechTask) -> Sequence[Segment]:
        if not token_ids:
            return []
        end = len(token_ids)
        if self.fault == "overlap":
            return [Segment(begin=0, end=2, text_ids=()), Segment(begin=1, end=end, text_ids=())]
        if self.fault == "too long":
            return [Segment(begin=0, end=end + 1)]
        text = [99] if self.fault == "other text" else token_ids
        return [Segment(begin=0, end=end, text_ids=text, end_s=31.0 if self.fault == "late" else None)]


def record(fault: str) -> Transcriber:
    return Transcriber("made", "MadeForAudio", partial(Asks, fault))


def test_a_correct_transcriber_passes() -> None:
    check_transcriber(record(""), Context(vocab_size=VOCAB), ANSWERS)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("no rate", "must be above 0"),
        ("refuses", "refuses every task"),
        ("changes its prompt", "another prompt the second time"),
        ("beyond the vocabulary", "ids beyond the vocabulary"),
        ("unknown language", "may find fr"),
        ("overlap", "overlap"),
        ("too long", "is not within 4 tokens"),
        ("other text", "not among its tokens"),
        ("late", "is not within the window"),
    ],
)
def test_a_faulty_transcriber_is_noticed(fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_transcriber(record(fault), Context(vocab_size=VOCAB), ANSWERS)


def test_wrong_parameters_are_noticed() -> None:
    with pytest.raises(BadRequest, match="max_tokens"):
        check_transcriber(record("wrong parameters"), Context(vocab_size=VOCAB), ANSWERS)
