"""Texts after which constraints start, and the tokens that must not be generated before.

A matcher accepts whole tokens, so a grammar can start only at a token boundary. A token that contains the end of the
trigger *and* more text, such as `>{` after `</think`, would start the answer before the grammar is active, so such
tokens are masked. A token may end with line breaks, which are not part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

LINE_BREAKS = b"\n"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StartTrigger:
    """A text, and the tokens that contain its end and more.

    overrun_ids: int64 ids, by the beginning of the text that has to precede the token; under b"" those that contain
    the whole text.
    """

    text: bytes
    overrun_ids: Mapping[bytes, np.ndarray]

    @classmethod
    def from_text(cls, text: bytes, tokens: Iterable[bytes]) -> StartTrigger:
        """`tokens`: the bytes of each id, in order. Slow: it examines all of them."""
        overrun_ids: dict[bytes, list[int]] = {}
        inside = frozenset(text[1:])
        for token_id, token in enumerate(tokens):
            if len(token) < 2:
                continue
            if text in token and token.partition(text)[2].strip(LINE_BREAKS):
                overrun_ids.setdefault(b"", []).append(token_id)
            if token[0] in inside:
                for prefix in _overrun_prefixes(text, token):
                    overrun_ids.setdefault(prefix, []).append(token_id)
        return cls(text, {prefix: np.array(ids, dtype=np.int64) for prefix, ids in overrun_ids.items()})

    def forbidden_ids(self, tail: bytes) -> np.ndarray:
        """Ids, int64, that must not follow an output that ends with `tail`."""
        found = [ids for prefix, ids in self.overrun_ids.items() if tail.endswith(prefix)]
        if len(found) < 2:
            return found[0] if found else _NONE
        return np.unique(np.concatenate(found))


def _overrun_prefixes(text: bytes, token: bytes) -> Iterable[bytes]:
    """The prefixes of `text` that a token would complete and extend."""
    for length in range(max(1, len(text) - len(token) + 1), len(text)):
        rest = text[length:]
        if token.startswith(rest) and token[len(rest) :].strip(LINE_BREAKS):
            yield text[:length]


@dataclass(slots=True, eq=False)
class TriggerProgress:
    """How far one sequence is in generating a trigger. tail: the end of its output."""

    trigger: StartTrigger
    tail: bytes = b""

    def append(self, token: bytes) -> bool:
        """Whether the trigger's text is complete with this token."""
        text = self.trigger.text
        self.tail += token
        if text in self.tail:
            return True
        self.tail = self.tail[-len(text) :]
        return False

    def forbidden_ids(self) -> np.ndarray:
        """Ids, int64, that must not come next."""
        return self.trigger.forbidden_ids(self.tail)
