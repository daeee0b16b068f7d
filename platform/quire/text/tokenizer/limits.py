"""Refuses tokenizers with which a short text would need much memory or time.

The library sets no such limits, and a thread that is inside it cannot be stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

MAX_FILE_BYTES = 256 << 20
"""Limit for tokenizer.json. Those of the largest vocabularies have 35 MB."""

MAX_ID = 1 << 24
"""Limit for token ids: tables by id are made of all of them."""

MAX_GROWTH = 64
"""Limit for how many times longer replacements may make a text. Known tokenizers replace a character by one or two."""

MAX_ADDED = 1024
"""Limit for the special tokens that are put around a text, and for characters that are put before it."""

MAX_PIECE = 512
"""Limit for the characters of a piece of a Unigram vocabulary: all pieces are tried at each character of a text."""

MAX_WORD = 256
"""Limit for the characters of a word that WordPiece divides: the time grows with their cube. The usual one is 100."""


def check_file_size(path: Path) -> None:
    """Raise `CheckpointError` for a file that is too large."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise CheckpointError(
            f"{path} cannot be read as a tokenizer: it has {size} bytes, and at most {MAX_FILE_BYTES} are read."
        )


def check_costs(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raise `CheckpointError` for a tokenizer that could need much memory or time. path: its file, for the error."""
    for problem in _problems(backend):
        raise CheckpointError(f"{path} cannot be used: {problem}.")


def check_ids(vocab: Mapping[str, int], folder: Path) -> None:
    """Raise `CheckpointError` for ids that are too large."""
    largest = max(vocab.values(), default=0)
    if largest > MAX_ID:
        raise CheckpointError(f"The tokenizer in {folder} has a token with the id {largest}; at most {MAX_ID} is used.")


def _problems(backend: tokenizers.Tokenizer) -> Iterator[str]:
    for part, name in ((backend.normalizer, "normalizer"), (backend.decoder, "decoder")):
        steps = list(_steps(part))
        growth = _growth([step for step in steps if step.get("type") == "Replace"])
        if growth > MAX_GROWTH:
            yield f"its {name} could make a text {growth} times longer; at most {MAX_GROWTH} times is accepted"
        for step in steps:
            if len(str(step.get("prepend", ""))) > MAX_ADDED:
                yield f"its {name} puts more than {MAX_ADDED} characters before a text"
    for step in _steps(backend.post_processor):
        if step.get("type") == "TemplateProcessing":
            yield from _problems_of_template(step)
    kind = type(backend.model).__name__
    if kind == "WordPiece" and backend.model.max_input_chars_per_word > MAX_WORD:  # type: ignore[attr-defined]
        yield f"its max_input_chars_per_word is more than {MAX_WORD}"
    if kind == "Unigram" and max(map(len, backend.get_vocab(with_added_tokens=False)), default=0) > MAX_PIECE:
        yield f"its vocabulary has a piece of more than {MAX_PIECE} characters"


def _growth(replacements: Sequence[Mapping[str, Any]]) -> int:
    """How many times longer a text can become at most, if these steps replace parts of it one after another."""
    largest, chained, written = 1, 1, set[str]()
    for step in replacements:
        content, pattern = str(step["content"]), step["pattern"].get("String")
        if not pattern or written & set(pattern):  # it may replace what an earlier step has written
            chained *= max(len(content), 1)
        else:
            largest = max(largest, len(content))
        written |= set(content)
    return largest * chained


def _problems_of_template(step: Mapping[str, Any]) -> Iterator[str]:
    for name in ("single", "pair"):
        pieces = step.get(name, [])
        texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
        special = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
        if len(texts) != len(set(texts)):
            yield f"its post-processor repeats the text ({name})"
        if sum(len(step["special_tokens"][token]["ids"]) for token in special) > MAX_ADDED:
            yield f"its post-processor puts more than {MAX_ADDED} tokens around a text ({name})"


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, decoder or post-processor, those in sequences included."""
    return _flat(json.loads(part.__getstate__())) if part is not None else iter(())


def _flat(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("normalizers", "decoders", "processors"):
        for inner in step.get(name, ()):
            yield from _flat(inner)
    yield step
