"""The demo Whisper: the synthesiser of its speech, its split and what the shipped weights hear."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from demo_scripts import modules_of
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from quire import LLM
from quire_plugins.audio.whisper import quire_demo_models as demo_models

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "demo_models"
(DEMO,) = demo_models()
FOLDER = DEMO.folder()
MODULES = (
    "data.chat.reply_styles",
    "data.speech.synthesizer",
    "data.speech.utterances",
    "models.whisper_tokenizer",
    "data.speech.speech_batches",
    "models.whisper_model",
    "evaluation.transcripts",
)


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    with modules_of(*MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def processor() -> WhisperProcessor:
    return WhisperProcessor.from_pretrained(FOLDER)


# --- the synthesiser ---------------------------------------------------------------------------------


def test_equal_seeds_give_equal_utterances_and_others_do_not(demo: Any) -> None:
    def made(seed: str) -> list[Any]:
        return [(u.text, u.samples.tobytes(), u.spans) for u in demo.transcripts.held_out(5, seed)]

    assert made("a") == made("a")
    assert not {key for key, *_ in made("a")} & {key for key, *_ in made("b")}


def test_it_sounds_where_digits_are_said_and_nowhere_else(demo: Any) -> None:
    rng = random.Random("spans")
    for text in ("0", "77", "1234567890"):
        samples, spans = demo.synthesizer.speak([int(digit) for digit in text], demo.synthesizer.Voice.any(rng), rng)
        assert np.abs(samples).max() == 1
        assert len(spans) == len(text)
        assert all(begin < end for begin, end in spans)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        loud = [np.abs(samples[round(16_000 * begin) : round(16_000 * end)]).mean() for begin, end in spans]
        assert min(loud) > 0.005
        assert len(samples) / 16_000 == pytest.approx(spans[-1][1], abs=0.01)


def test_utterances_fit_the_window_and_training_says_nothing_that_is_held_out(demo: Any) -> None:
    rng = random.Random("split")
    said = set(itertools.islice(demo.utterances.rows(rng, held_out=False), 2000))
    kept = set(itertools.islice(demo.utterances.rows(rng, held_out=True), 200))
    assert not said & kept
    assert {len(text) for text in said} == set(range(1, 9))
    assert {len(text) for text in kept} == set(range(4, 9))
    for utterance in demo.transcripts.held_out(20, "window"):
        assert len(utterance.samples) <= 5 * 16_000
        assert np.abs(utterance.samples).max() <= 1
        assert utterance.spans[-1][1] <= len(utterance.samples) / 16_000


# --- tokens and batches ------------------------------------------------------------------------------


def test_the_scripts_rebuild_the_shipped_processor(demo: Any, tmp_path: Path) -> None:
    demo.whisper_tokenizer.new_processor().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "processor_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((FOLDER / name).read_text())


def test_a_lesson_asks_for_the_language_the_digits_the_times_and_the_end(
    demo: Any, processor: WhisperProcessor
) -> None:
    tokenizer = processor.tokenizer
    lesson = demo.speech_batches.Teacher(processor, 0, 24, 1)[0]
    assert lesson.features.shape == (24, 64, 250)
    assert lesson.said.shape == (24, 125)
    for tokens, wanted, said in zip(lesson.tokens.tolist(), lesson.wanted.tolist(), lesson.said, strict=True):
        start = tokens.index(tokenizer.convert_tokens_to_ids("<|startoftranscript|>"))
        asked = [token for token in wanted if token != -100]
        text = tokenizer.decode(asked[1:], skip_special_tokens=True)
        digits = [digit for digit, _ in itertools.groupby(said.tolist()) if digit < 10]
        assert [digit for digit, _ in itertools.groupby(text)] == [
            digit for digit, _ in itertools.groupby("".join(map(str, digits)))
        ]
        assert wanted[start] == tokenizer.convert_tokens_to_ids("<|en|>" if text else "<|nospeech|>")
        assert asked[-1] == tokenizer.eos_token_id
        timed = tokens[start + 3] != tokenizer.convert_tokens_to_ids("<|notimestamps|>")
        assert len(asked) == 1 + len(text) + 1 + timed * (2 if text else 1)


# --- the shipped model -------------------------------------------------------------------------------


def test_the_demo_is_small_and_in_hugging_face_format() -> None:
    assert DEMO.name == "demo-whisper"
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    names |= {"preprocessor_config.json", "processor_config.json"}
    assert {file.name for file in FOLDER.iterdir()} == names
    assert (FOLDER / "model.safetensors").stat().st_size <= 2 << 20
    config = json.loads((FOLDER / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["WhisperForConditionalGeneration"], "bfloat16")


def test_transformers_writes_down_what_is_held_out(demo: Any, processor: WhisperProcessor) -> None:
    model = WhisperForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    utterances = demo.transcripts.held_out(120, "test")
    shares = demo.transcripts.score(utterances, demo.transcripts.write_down(model, processor, utterances))
    assert set(shares) == {*(f"{count} digits" for count in range(4, 9)), "overall"}
    assert shares["overall"] >= 0.92, shares


def test_it_transcribes_the_recording_of_its_page_with_timestamps_and_detects_silence(demo: Any) -> None:
    samples, rate = soundfile.read(SOURCES / "digits.wav", dtype="float32")
    (text,) = re.findall(r"^(\d+)$", (SOURCES / "README.md").read_text(), re.MULTILINE)
    room = demo.utterances.silence(random.Random("room")).samples
    with LLM(str(FOLDER), plugins=["whisper"], num_pages=128, dtype="float32") as llm:
        said, nothing = llm.transcribe([(samples, rate), (room, 16_000)], language="en", use_tqdm=False)
        (timed,) = llm.transcribe((samples, rate), timestamps=True, use_tqdm=False)
    assert (said.text, nothing.text) == (text, "")
    (segment,) = timed.segments
    assert segment.text.strip() == text
    assert 0 < segment.start_s < segment.end_s < len(samples) / rate
