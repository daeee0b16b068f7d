"""Changes to logits that sampling parameters ask for: bans, biases, penalties.

Order, as in vLLM: allowed_token_ids, bad_words, min_tokens and logit_bias, then repetition, frequency and presence
penalty. Every change touches single logits only, so rows cannot influence each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from quire.params.sampling import SamplingParams

_NO_IDS = np.empty(0, dtype=np.int64)


class TokenCounts:
    """The distinct tokens of a sequence and how often each occurs in the output; grows by one token at a time."""

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        seen = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._size = len(seen)
        self._ids = seen.copy()
        self._counts = np.zeros(len(seen), dtype=np.float32)
        self._index_of = {int(token): i for i, token in enumerate(seen)}
        for token in output_ids:
            self.add(token)

    def add(self, token: int) -> None:
        index = self._index_of.setdefault(token, self._size)
        if index == self._size:
            if index == len(self._ids):
                capacity = max(64, 2 * index)
                self._ids = np.resize(self._ids, capacity)
                self._counts = np.resize(self._counts, capacity)
            self._ids[index], self._counts[index] = token, 0
            self._size += 1
        self._counts[index] += 1

    @property
    def ids(self) -> np.ndarray:
        """Distinct token ids: int64 [k]."""
        return self._ids[: self._size]

    @property
    def counts(self) -> np.ndarray:
        """Occurrences of each in the output, 0 = only in the prompt: float32 [k]."""
        return self._counts[: self._size]


class LogitsEdits:
    """The changes to the logits of one sequence, prepared once and applied in every step.

    output_ids: the live list of generated tokens; `append` is called for each new one.
    """

    def __init__(
        self, params: SamplingParams, eos_ids: Collection[int], prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        bias = params.logit_bias or {}
        self.allowed = None if params.allowed_token_ids is None else np.asarray(params.allowed_token_ids, np.int64)
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias = np.fromiter(bias.values(), np.float32, len(bias))
        self.min_tokens = params.min_tokens
        self._stop_ids = np.asarray(sorted({*eos_ids, *(params.stop_token_ids or ())}), np.int64)
        self._bad = np.asarray(sorted({word[0] for word in params.bad_word_ids if len(word) == 1}), np.int64)
        self._bad_words = tuple(word for word in params.bad_word_ids if len(word) > 1)
        self._output_ids = output_ids
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        is_penalized = self.penalties != (1, 0, 0)
        reads_prompt = params.repetition_penalty != 1
        self.counts = TokenCounts(prompt_ids if reads_prompt else (), output_ids) if is_penalized else None

    @property
    def can_ban(self) -> bool:
        """Whether it can ban tokens."""
        return self.allowed is not None or len(self._bad) > 0 or bool(self._bad_words)

    def append(self, token: int) -> None:
        if self.counts is not None:
            self.counts.add(token)

    def banned(self) -> np.ndarray:
        """Token ids banned in this step by bad_words or min_tokens."""
        parts = [self._bad] if len(self._bad) else []
        parts.extend(np.asarray([word[-1]]) for word in self._bad_words if self._ends_with(word[:-1]))
        if len(self._output_ids) < self.min_tokens:
            parts.append(self._stop_ids)
        return np.concatenate(parts) if parts else _NO_IDS

    def _ends_with(self, tokens: tuple[int, ...]) -> bool:
        return tuple(self._output_ids[-len(tokens) :]) == tokens


def apply_edits(logits: Tensor, edits: Sequence[tuple[int, LogitsEdits]]) -> None:
    """Change `logits` [rows, vocab] float32 in place. edits: (row, its edits)."""
    for row, edit in edits:
        if edit.allowed is not None:
            ids = torch.from_numpy(edit.allowed).to(logits.device)
            kept = logits[row, ids]
            logits[row].fill_(-torch.inf)
            logits[row, ids] = kept
    banned = [(row, edit.banned()) for row, edit in edits]
    _mask(logits, [(row, ids) for row, ids in banned if len(ids)])
    _bias(logits, [(row, edit) for row, edit in edits if len(edit.bias_ids)])
    _penalize(logits, [(row, edit) for row, edit in edits if edit.counts is not None])


def _index(logits: Tensor, rows: Sequence[int], ids: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    lengths = [len(part) for part in ids]
    row = torch.from_numpy(np.repeat(np.asarray(rows, np.int64), lengths))
    return row.to(logits.device), torch.from_numpy(np.concatenate(ids)).to(logits.device)


def _mask(logits: Tensor, banned: Sequence[tuple[int, np.ndarray]]) -> None:
    if banned:
        where = _index(logits, [row for row, _ in banned], [ids for _, ids in banned])
        logits[where] = -torch.inf


def _bias(logits: Tensor, edits: Sequence[tuple[int, LogitsEdits]]) -> None:
    if edits:
        where = _index(logits, [row for row, _ in edits], [edit.bias_ids for _, edit in edits])
        logits[where] = logits[where] + torch.from_numpy(np.concatenate([e.bias for _, e in edits])).to(logits.device)


def _penalize(logits: Tensor, edits: Sequence[tuple[int, LogitsEdits]]) -> None:
    """Repetition penalty: Keskar et al., "CTRL", 2019. Frequency and presence penalty: OpenAI API reference."""
    penalized = [(row, edit.counts, edit.penalties) for row, edit in edits if edit.counts is not None]
    if not penalized:
        return
    where = _index(logits, [row for row, _, _ in penalized], [counts.ids for _, counts, _ in penalized])
    count = torch.from_numpy(np.concatenate([counts.counts for _, counts, _ in penalized])).to(logits.device)
    factors = np.repeat(
        np.asarray([p for _, _, p in penalized], np.float32), [len(c.ids) for _, c, _ in penalized], axis=0
    )
    repetition, frequency, presence = torch.from_numpy(factors).to(logits.device).unbind(1)
    value = logits[where]
    value = torch.where(value > 0, value / repetition, value * repetition)
    logits[where] = value - frequency * count - presence * (count > 0)
