"""Tokens of the demo Whisper: bytes, and the marks that all Whispers have, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

from data.speech.synthesizer import RATE
from data.speech.utterances import SECONDS, Utterance
from tokenizers import pre_tokenizers
from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer

END, START, ENGLISH, TRANSLATE, TRANSCRIBE = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
)
PREVIOUS, NO_SPEECH, NO_TIMES = "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"
STEP = 0.04
"""Seconds from one timestamp to the next, as long as a row of the encoder: twice as long as in other Whispers."""

MELS = 64
TASKS = (TRANSCRIBE, TRANSLATE)


def new_processor() -> WhisperProcessor:
    """Tokenizer and feature extractor."""
    marks = [END, START, ENGLISH, TRANSLATE, TRANSCRIBE, "<|startoflm|>", PREVIOUS, NO_SPEECH, NO_TIMES]
    times = [f"<|{STEP * i:.2f}|>" for i in range(round(SECONDS / STEP) + 1)]
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *marks, *times]
    tokenizer = WhisperTokenizer(vocab={name: i for i, name in enumerate(names)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": marks[1:]})
    tokenizer.add_tokens(times)
    extractor = WhisperFeatureExtractor(
        feature_size=MELS, sampling_rate=RATE, chunk_length=SECONDS, hop_length=round(STEP / 2 * RATE)
    )
    return WhisperProcessor(extractor, tokenizer)


def stamp(seconds: float) -> str:
    """The timestamp nearest to a time."""
    return f"<|{STEP * round(min(max(seconds, 0), SECONDS) / STEP):.2f}|>"


def written(utterance: Utterance, task: str, timed: bool, previous: str = "") -> tuple[list[str], list[str]]:
    """What a decoder is given before it writes an utterance down, and what it writes then."""
    before = [PREVIOUS, *previous] if previous else []
    prompt = [*before, START, ENGLISH, task]
    if not timed:
        return [*prompt, NO_TIMES], [*utterance.text, END]
    if not utterance.text:
        return prompt, [stamp(0), END]
    begin, end = utterance.spans[0][0], utterance.spans[-1][1]
    return prompt, [stamp(begin), *utterance.text, stamp(end), END]


def ids_of(tokenizer: WhisperTokenizer, tokens: Sequence[str]) -> list[int]:
    """Their ids; each is one token."""
    found: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    return found
