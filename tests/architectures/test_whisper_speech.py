"""How Whisper is asked for what is said, and how its timestamps are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from whisper_rig import (
    END,
    ENGLISH,
    FIRST_TIME,
    GERMAN,
    NO_SPEECH,
    NO_TIMES,
    PREVIOUS,
    RATE,
    START,
    TEXT,
    TRANSCRIBE,
    TRANSLATE,
    VOCAB,
    WINDOW_S,
    Model,
)

from quire.errors import BadRequest, CheckpointError
from quire.records import Context, SpeechTask
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.audio.whisper_speech import WhisperPrompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"), rules=True)


def asks_of(folder: Path) -> WhisperPrompts:
    return WhisperPrompts(Context(folder=str(folder), vocab_size=VOCAB, tokenizer=Tokenizer.load(folder)))


@pytest.fixture(scope="module")
def asks(model: Model) -> WhisperPrompts:
    return asks_of(model.folder)


def test_what_it_hears(asks: WhisperPrompts) -> None:
    assert (asks.sampling_rate, asks.window_s) == (RATE, WINDOW_S)
    assert asks.languages == {"en": "English", "de": "German"}


@pytest.mark.parametrize(
    ("task", "ids"),
    [
        (SpeechTask(language="en"), [START, ENGLISH, TRANSCRIBE, NO_TIMES]),
        (SpeechTask(language="de", timestamps=True), [START, GERMAN, TRANSCRIBE]),
        (SpeechTask(language="de", translate=True), [START, GERMAN, TRANSLATE, NO_TIMES]),
        (SpeechTask(language="de", translate=True, to_language="en", timestamps=True), [START, GERMAN, TRANSLATE]),
        (SpeechTask(language="en", previous=" Ah. "), [PREVIOUS, *b" Ah.", START, ENGLISH, TRANSCRIBE, NO_TIMES]),
        (SpeechTask(language="en", previous="  "), [START, ENGLISH, TRANSCRIBE, NO_TIMES]),
    ],
)
def test_prompts_say_the_language_and_the_task(asks: WhisperPrompts, task: SpeechTask, ids: list[int]) -> None:
    assert asks.prompt(task) == ids


def test_of_a_long_text_before_the_end_is_kept(asks: WhisperPrompts) -> None:
    ids = list(asks.prompt(SpeechTask(language="en", previous="x" * 50 + "y" * (TEXT // 2 - 2))))
    assert ids[: ids.index(START)] == [PREVIOUS, ord("x"), *b"y" * (TEXT // 2 - 2)]


@pytest.mark.parametrize(
    ("task", "param", "said"),
    [
        (SpeechTask(), "language", "`language` must be one of en, de"),
        (SpeechTask(language="fr"), "language", "`language` must be one of en, de"),
        (SpeechTask(language="en", translate=True, to_language="de"), "to_language", "into English only"),
        (
            SpeechTask(language="en", previous="a<|notimestamps|>"),
            "prompt",
            "name of a token with a meaning of its own",
        ),
    ],
)
def test_tasks_that_it_cannot_do_are_refused(asks: WhisperPrompts, task: SpeechTask, param: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as caught:
        asks.prompt(task)
    assert caught.value.param == param


def test_one_step_tells_the_language_and_whether_anybody_speaks(asks: WhisperPrompts) -> None:
    detection = asks.language_detection()
    assert detection is not None
    assert detection.prompt_ids == [START]
    assert detection.languages == {ENGLISH: "en", GERMAN: "de"}
    assert detection.silence_id == NO_SPEECH


def test_parameters_ask_for_timestamps_or_forbid_them(asks: WhisperPrompts) -> None:
    for times in (True, False):
        assert asks.params(SpeechTask(timestamps=times)) == {"extra": {"return_timestamps": times}}


def time(seconds: float) -> int:
    return FIRST_TIME + round(seconds / 0.02)


A, B = 97, 98


@pytest.mark.parametrize(
    ("ids", "segments"),
    [
        ([], []),
        ([A, B], [(0, 2, (A, B), None, None)]),
        ([time(0), A, B, time(1)], [(0, 4, (A, B), 0, 1)]),
        (
            [time(0.1), A, time(0.5), time(0.5), B, B, time(1.98)],
            [(0, 3, (A,), 0.1, 0.5), (3, 7, (B, B), 0.5, 1.98)],
        ),
        ([time(0), A, time(0.4), time(0.6), B], [(0, 3, (A,), 0, 0.4), (3, 5, (B,), 0.6, None)]),
        ([A, time(0.2), B, NO_TIMES, time(2)], [(0, 2, (A,), None, 0.2), (2, 5, (B,), None, 2)]),
        ([time(0), time(0.3), A, END, PREVIOUS, B], [(0, 6, (A, B), 0.3, None)]),
        ([time(0), time(2)], []),
    ],
)
def test_a_timestamp_ends_a_segment_or_begins_one(
    asks: WhisperPrompts,
    ids: list[int],
    segments: Sequence[tuple[int, int, tuple[int, ...], float | None, float | None]],
) -> None:
    found = asks.segments(ids, SpeechTask(timestamps=True))
    assert [(one.begin, one.end, one.text_ids, one.start_s, one.end_s) for one in found] == list(segments)


def changed(model: Model, folder: Path, **changes: object) -> Path:
    for file in model.folder.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, **changes}))
    return folder


def test_a_model_of_english_alone_is_asked_for_nothing_else(model: Model, tmp_path: Path) -> None:
    asks = asks_of(changed(model, tmp_path, is_multilingual=False))
    assert asks.languages == {"en": "English"}
    assert asks.prompt(SpeechTask(previous="a")) == [PREVIOUS, *b" a", START, NO_TIMES]
    assert asks.prompt(SpeechTask(language="en")) == [START, NO_TIMES]
    assert asks.prompt(SpeechTask(timestamps=True)) == [START]
    with pytest.raises(BadRequest, match="knows English alone; it cannot translate"):
        asks.prompt(SpeechTask(translate=True))
    detection = asks.language_detection()
    assert detection is not None
    assert (detection.languages, detection.silence_id) == ({}, NO_SPEECH)


def test_a_folder_without_what_prompts_are_made_of_is_refused(model: Model, tmp_path: Path) -> None:
    folder = changed(model, tmp_path, eos_token_id=None)
    with pytest.raises(CheckpointError, match="needs an `eos_token_id`; this one has none"):
        asks_of(folder)
    changed(model, folder)
    tokens = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tokens.replace("<|startofprev|>", "<|startofpast|>"))
    with pytest.raises(CheckpointError, match=r"needs a token <\|startofprev\|>; this one has none"):
        asks_of(folder)
