"""A tiny random Whisper behind `/v1/audio/…`: the `openai` client gets what transformers makes of each window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from audio_model import wav
from numpy.typing import NDArray
from serving import serving
from whisper_rig import (
    END,
    ENGLISH,
    FIRST_TIME,
    GERMAN,
    NEVER,
    NO_SPEECH,
    NO_TIMES,
    NOT_FIRST,
    PREVIOUS,
    RATE,
    START,
    TRANSCRIBE,
    TRANSLATE,
    VOCAB,
    WINDOW_S,
    Model,
    speech,
)

from quire import LLM, SamplingParams
from quire.media.windows import split_windows
from quire.text.speech.transcript import join_texts
from quire.text.tokenizer.tokenizer import Tokenizer

# The client calls translations deprecated, which is an affair of the service it was made for.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")

COUNT = 24
"""Tokens of a window."""

LONG = np.concatenate([speech(11, 1.5), np.zeros(RATE // 5, np.float32), speech(12, 1.9), speech(13, 0.7)])
SHORT = speech(14, 1.2)
SETTINGS = ("--dtype", "float32", "--device", "cpu", "--num-pages", "128")

LANGUAGES = {"en": ENGLISH, "de": GERMAN}

Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"), rules=True)


@pytest.fixture(scope="module")
def client(model: Model) -> Iterator[openai.OpenAI]:
    with (
        serving(model.folder, "--served-model-name", "tiny", "--plugins", "whisper", *SETTINGS) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made,
    ):
        yield made


def asked(client: openai.OpenAI, samples: Samples, **fields: Any) -> Any:
    more = {"max_completion_tokens": COUNT}
    return client.audio.transcriptions.create(model="tiny", file=wav(samples, RATE), extra_body=more, **fields)


def windows(samples: Samples) -> list[Samples]:
    return [samples[begin:end] for begin, end in split_windows(samples, RATE, WINDOW_S)]


def by_transformers(model: Model, samples: Samples, prompt: list[int], times: bool = False) -> list[int]:
    """What it says after a prompt, by its own rules about tokens; up to the end of text."""
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    rules: list[Any] = [SuppressTokensAtBeginLogitsProcessor(NOT_FIRST, len(prompt))]
    rules.append(SuppressTokensLogitsProcessor([*NEVER, *(() if times else range(FIRST_TIME, VOCAB))]))
    if times:
        rules.append(WhisperTimeStampLogitsProcessor(model.reference.generation_config, len(prompt)))
    ids = model.greedy(samples, prompt, COUNT, processors=rules)
    return ids[: ids.index(END)] if END in ids else ids


def text_of(model: Model, *windows: list[int]) -> str:
    tokenizer = Tokenizer.load(model.folder)
    return join_texts([tokenizer.decode(ids) for ids in windows])


@pytest.mark.parametrize("samples", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_texts_are_those_of_transformers_for_each_window(
    model: Model, client: openai.OpenAI, samples: Samples, language: str
) -> None:
    prompt = [START, LANGUAGES[language], TRANSCRIBE, NO_TIMES]
    ids = [by_transformers(model, window, prompt) for window in windows(samples)]
    assert len(ids) == (1 if samples is SHORT else 3)
    assert asked(client, samples, language=language).text == text_of(model, *ids)
    with asked(client, samples, language=language, stream=True) as stream:
        *_, done = list(stream)
    assert done.text == text_of(model, *ids)


def test_translations_are_those_of_transformers(model: Model, client: openai.OpenAI) -> None:
    ids = by_transformers(model, SHORT, [START, GERMAN, TRANSLATE, NO_TIMES])
    more = {"language": "de", "max_completion_tokens": COUNT}
    answer = client.audio.translations.create(model="tiny", file=wav(SHORT, RATE), extra_body=more)
    assert answer.text == text_of(model, ids)


def test_language_times_and_silence_are_those_of_transformers(model: Model, client: openai.OpenAI) -> None:
    answer = asked(client, LONG, response_format="verbose_json")
    heard = int(model.reference.detect_language(model.features(windows(LONG)[0]))[0])
    assert answer.language == {ENGLISH: "english", GERMAN: "german"}[heard]
    begin_s = 0.0
    for window in windows(LONG):
        said = [one for one in answer.segments if one.seek == round(begin_s * 100)]
        ids = by_transformers(model, window, [START, heard, TRANSCRIBE], times=True)
        tokens = [token for one in said for token in one.tokens]
        assert ids[: len(tokens)] == tokens
        assert all(token >= FIRST_TIME for token in ids[len(tokens) :])
        assert len(said) > 1
        silence = float(model.logits(window, [START])[-1].softmax(0)[NO_SPEECH])
        assert all(one.no_speech_prob == pytest.approx(silence, abs=1e-4) for one in said)
        for one in said:
            assert begin_s <= one.start <= one.end <= begin_s + len(window) / RATE + 1e-6
            if one.tokens[0] >= FIRST_TIME:
                time_s = min((one.tokens[0] - FIRST_TIME) * 0.02, len(window) / RATE)
                assert one.start == pytest.approx(begin_s + time_s, abs=1e-6)
        begin_s += len(window) / RATE


def test_logprobs_are_those_of_transformers(model: Model, client: openai.OpenAI) -> None:
    answer = asked(client, SHORT, language="en", response_format="verbose_json")
    prompt = [START, ENGLISH, TRANSCRIBE]
    ids = [token for one in answer.segments for token in one.tokens]
    logprobs = model.logits(SHORT, [*prompt, *ids])[len(prompt) - 1 : -1].log_softmax(-1)
    values = logprobs[torch.arange(len(ids)), torch.tensor(ids)].tolist()
    for one in answer.segments:
        some, values = values[: len(one.tokens)], values[len(one.tokens) :]
        assert one.avg_logprob == pytest.approx(sum(some) / len(some), abs=1e-4)


def test_a_prompt_goes_before(model: Model, client: openai.OpenAI) -> None:
    ids = by_transformers(model, SHORT, [PREVIOUS, *b" Quire", START, ENGLISH, TRANSCRIBE, NO_TIMES])
    assert asked(client, SHORT, language="en", prompt="Quire").text == text_of(model, ids)
    assert asked(client, SHORT, language="en").text != text_of(model, ids)


def test_python_says_the_same_as_the_server(model: Model, client: openai.OpenAI) -> None:
    params = SamplingParams(temperature=0, max_tokens=COUNT)
    with LLM(str(model.folder), plugins="whisper", dtype="float32", device="cpu", num_pages=128) as llm:
        first, second = llm.transcribe([(LONG, RATE), (SHORT, RATE)], sampling_params=params, use_tqdm=False)
        assert llm.get_metrics()["num_media_encoded_total"] == 4, "asking for the language hears nothing twice"
    assert first.text == asked(client, LONG).text
    assert second.text == asked(client, SHORT).text


def test_silence_and_a_few_samples_are_answered(client: openai.OpenAI) -> None:
    for samples in (np.zeros(RATE, np.float32), np.zeros(5 * RATE, np.float32), SHORT[:3]):
        answer = asked(client, samples, response_format="verbose_json", language="en")
        assert answer.duration == pytest.approx(len(samples) / RATE)
        assert all(one.end <= answer.duration + 1e-9 for one in answer.segments)


@pytest.mark.parametrize("path", [Path("a.srt"), Path("a.vtt")], ids=str)
def test_subtitles_have_the_segments(client: openai.OpenAI, path: Path) -> None:
    form: Any = path.suffix[1:]
    answer = asked(client, LONG, response_format=form, language="en")
    segments = asked(client, LONG, response_format="verbose_json", language="en").segments
    assert answer.count(" --> ") == len(segments)
