"""Log-probabilities and echoed prompts in the shape of the completions API. It knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.server import wire
from quire.text.logprobs import PositionLogprobs
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Lead:
    """A prompt that is echoed before its completions."""

    text: str
    token_ids: tuple[int, ...]
    positions: tuple[PositionLogprobs | None, ...]
    token_texts: tuple[str, ...]

    @property
    def length(self) -> int:
        """Characters before the completion."""
        return len(self.text)

    @classmethod
    def of(cls, prompt: Prompt, positions: Sequence[PositionLogprobs | None] | None, tokenizer: Tokenizer) -> Lead:
        """The echo of a prompt; its log-probabilities are known after the first delta."""
        ids = prompt.token_ids
        text = tokenizer.decode(ids, skip_special_tokens=False) if prompt.text is None else prompt.text
        texts = tuple(tokenizer.token_text(token_id) for token_id in ids) if positions else ()
        return cls(text, ids, tuple(positions or ()), texts)


class Logprobs:
    """The four parallel lists of the completions API."""

    def __init__(self, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._tokens: list[str] = []
        self._own: list[float | None] = []
        self._top: list[msgspec.Raw | None] = []
        self._offsets: list[int] = []
        self._shift = 0

    def add_prompt(self, lead: Lead) -> None:
        """The echoed prompt's tokens; nothing predicts the first one."""
        offset = 0
        for token_id, position, text in zip(lead.token_ids, lead.positions, lead.token_texts, strict=False):
            if position is None:
                self._tokens.append(f"token_id:{token_id}" if self._as_ids else text)
                self._own.append(None)
                self._top.append(None)
                self._offsets.append(offset)
            else:
                self._add(token_id, position, offset)
            offset += len(text)
        self._shift = lead.length

    def add(
        self,
        token_ids: Sequence[int],
        positions: Sequence[PositionLogprobs] | None,
        offsets: Sequence[int] | None,
        shift: int | None = None,
    ) -> None:
        """Generated tokens and where their texts begin, counted from `shift` (default: after the prompt, if any)."""
        shift = self._shift if shift is None else shift
        for token_id, position, offset in zip(token_ids, positions or (), offsets or (), strict=False):
            self._add(token_id, position, shift + offset)

    def _add(self, token_id: int, position: PositionLogprobs, offset: int) -> None:
        own = position[token_id]
        self._tokens.append(wire.token_name(token_id, own, self._as_ids))
        self._own.append(wire.finite(own.logprob))
        top = {wire.token_name(key, entry, self._as_ids): wire.finite(entry.logprob) for key, entry in position.items()}
        self._top.append(msgspec.Raw(_encode(top)))  # a position at a time, so that others get their turn
        self._offsets.append(offset)

    def shape(self) -> dict[str, Any]:
        """As the wire has it."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._own,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
