"""Chooses among continuations of the same text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from quire_drafters.lookup import Tokens


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens, and how many of them are right by estimate."""

    token_ids: list[int]
    score: float


def likeliest_path(rows: Tokens, min_probability: float) -> Path:
    """Follow the most frequent token, then the most frequent one after it, and so on.

    rows: int32 [occurrences, length], continuations in order of time, at least one; -1 after the end of one. The
    probability of a path is the share of occurrences that go along it; it ends where that is below `min_probability`.
    Of tokens that are equally frequent the one of the latest row is chosen.
    """
    total, length = rows.shape
    token_ids: list[int] = []
    score = 0.0
    while len(token_ids) < length:
        begin = len(token_ids)
        latest, share = rows[-1, begin:], len(rows) / total
        ends = (rows[:, begin:] != latest).any(axis=0) | (latest < 0)
        num_common = int(ends.argmax()) if ends.any() else length - begin
        token_ids += latest[:num_common].tolist()
        score += share * num_common
        if begin + num_common == length:
            break
        column = rows[:, begin + num_common]
        counts = Counter(column[column >= 0][::-1].tolist())
        if not counts:
            break
        token_id, count = counts.most_common(1)[0]
        if count < min_probability * total:
            break
        rows = rows[column == token_id]
    return Path(token_ids, score)
