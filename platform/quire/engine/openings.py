"""Openings: texts after which constraints begin, and which tokens may not finish them.

A matcher takes whole tokens, so that a grammar can begin only where a token ends. A token that finishes the text
and goes on, such as `>{` after `</think`, would write the beginning of the answer outside the grammar: where it would
do so, it is forbidden. Line breaks may follow, which are no part of the answer. It knows no grammar and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

LINE_BREAKS = b"\n"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A text, and the tokens that go on after its end: by the part of the text that must stand before each.

    past: int64 ids by part; the part b"" has those with the whole text in them.
    """

    text: bytes
    past: Mapping[bytes, np.ndarray]

    @classmethod
    def of(cls, text: bytes, tokens: Iterable[bytes]) -> Opening:
        """`tokens`: the bytes of each id. Looks at all of them once, which takes a while."""
        past: dict[bytes, list[int]] = {}
        inside = frozenset(text[1:])
        for token_id, token in enumerate(tokens):
            if len(token) < 2:
                continue
            if text in token and token.partition(text)[2].strip(LINE_BREAKS):
                past.setdefault(b"", []).append(token_id)
            if token[0] in inside:
                for part in _parts_before(text, token):
                    past.setdefault(part, []).append(token_id)
        return cls(text, {part: np.array(ids, dtype=np.int64) for part, ids in past.items()})

    def forbidden(self, tail: bytes) -> np.ndarray:
        """Ids, int64, that may not come after an output that ends with `tail`."""
        found = [ids for part, ids in self.past.items() if tail.endswith(part)]
        if len(found) < 2:
            return found[0] if found else _NONE
        return np.unique(np.concatenate(found))


def _parts_before(text: bytes, token: bytes) -> Iterable[bytes]:
    """The beginnings of `text` that a token would finish, and go on."""
    for length in range(max(1, len(text) - len(token) + 1), len(text)):
        rest = text[length:]
        if token.startswith(rest) and token[len(rest) :].strip(LINE_BREAKS):
            yield text[:length]


@dataclass(slots=True, eq=False)
class Gate:
    """Keeps a constraint from beginning until its opening was written. tail: what was written last."""

    opening: Opening
    tail: bytes = b""

    def passes(self, token: bytes) -> bool:
        """Whether the text is complete with this token."""
        text = self.opening.text
        self.tail += token
        if text in self.tail:
            return True
        self.tail = self.tail[-len(text) :]
        return False

    def forbidden(self) -> np.ndarray:
        """Ids, int64, that may not come next."""
        return self.opening.forbidden(self.tail)
