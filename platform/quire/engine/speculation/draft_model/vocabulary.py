"""Checks that a draft model means the same tokens as the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire import files
from quire.errors import ConfigError

FILE = "tokenizer.json"
MAX_BYTES = 64 << 20
"""Limit for tokenizer.json. Those of the largest vocabularies have 35 MB."""


def check_vocabulary(draft: Path, draft_size: int, target: Path, target_size: int) -> None:
    """Raise ConfigError unless both models have the same token ids; `draft`, `target`: folders of their tokenizers.

    Sizes may differ by padding, where both tokenizers can be read and have the same tokens.
    """
    of_draft, of_target = _read(draft), _read(target)
    if of_draft is None or of_target is None:
        if draft_size != target_size:
            raise ConfigError(f"its vocabulary has {draft_size} tokens, that of the served model {target_size}")
        return
    if of_draft == of_target:
        return
    tokens, wanted = _tokens(of_draft), _tokens(of_target)
    differing = sorted(each for each in tokens.keys() & wanted.keys() if tokens[each] != wanted[each])
    if differing:
        first = differing[0]
        raise ConfigError(
            f"its tokenizer is another: {len(differing)} tokens differ from those of the served model, the first is "
            f"{first} ({tokens[first]!r:.40}, not {wanted[first]!r:.40})"
        )
    if draft_size != target_size and tokens != wanted:
        raise ConfigError(
            f"its vocabulary has {draft_size} tokens, {len(tokens)} of them in its tokenizer; that of the served model "
            f"{target_size} and {len(wanted)}"
        )


def _read(folder: Path) -> Any:
    """The contents of tokenizer.json, None without one that can be read."""
    try:
        found = files.read_json(folder / FILE, MAX_BYTES)
    except files.FileRefused:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("model"), dict) else None


def _tokens(tokenizer: dict[str, Any]) -> dict[int, str]:
    """Token by id: the vocabulary, which is an object or a list of tokens with scores, and the added tokens."""
    vocab, added = tokenizer["model"].get("vocab"), tokenizer.get("added_tokens")
    found: dict[int, str] = {}
    if isinstance(vocab, dict):
        found = {index: token for token, index in vocab.items() if isinstance(index, int)}
    elif isinstance(vocab, list):
        found = {index: str(entry[0]) for index, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            found[entry["id"]] = str(entry.get("content"))
    return found
