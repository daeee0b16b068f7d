"""Log-probabilities in the shapes of the completions and chat APIs, and echoed prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.server.openai import format as wire
from quire.text.outputs.logprobs import Logprob, PositionLogprobs
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that is sent before its completions. positions: its log-probabilities."""

    text: str
    token_ids: tuple[int, ...]
    positions: tuple[PositionLogprobs | None, ...]
    token_texts: tuple[str, ...]

    @property
    def length(self) -> int:
        """The offset of the completion, in characters."""
        return len(self.text)

    @classmethod
    def from_prompt(
        cls, prompt: Prompt, positions: Sequence[PositionLogprobs | None] | None, tokenizer: Tokenizer
    ) -> EchoedPrompt:
        """positions: the prompt's log-probabilities, which the first delta brings."""
        ids = prompt.token_ids
        text = tokenizer.decode(ids, skip_special_tokens=False) if prompt.text is None else prompt.text
        texts = tuple(tokenizer.token_text(token_id) for token_id in ids) if positions else ()
        return cls(text, ids, tuple(positions or ()), texts)


class CompletionLogprobLists:
    """Builds the four parallel lists of the completions API. as_ids: tokens are written as `token_id:N`."""

    def __init__(self, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._tokens: list[str] = []
        self._own: list[float | None] = []
        self._top: list[msgspec.Raw | None] = []
        self._offsets: list[int] = []
        self._shift = 0

    def add_prompt(self, echo: EchoedPrompt) -> None:
        """Add the tokens of the echoed prompt; the first one has no log-probability."""
        offset = 0
        for token_id, position, text in zip(echo.token_ids, echo.positions, echo.token_texts, strict=False):
            if position is None:
                self._tokens.append(f"token_id:{token_id}" if self._as_ids else text)
                self._own.append(None)
                self._top.append(None)
                self._offsets.append(offset)
            else:
                self._add(token_id, position, offset)
            offset += len(text)
        self._shift = echo.length

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
        self._top.append(msgspec.Raw(_encode(top)))  # encoded one position at a time, so that other threads can run
        self._offsets.append(offset)

    def to_wire(self) -> dict[str, Any]:
        """The `logprobs` object of a choice."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._own,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }


def chat_logprobs(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int, as_ids: bool
) -> dict[str, Any]:
    """The `logprobs` object of the chat API: one entry per token.

    num_top: the number of most likely tokens in each entry (-1: all). as_ids: tokens are written as `token_id:N`.
    """
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        ranked = sorted(position.items(), key=lambda item: item[1].rank or 0)
        top = ranked if num_top < 0 else ranked[:num_top]
        entry = _entry(token_id, position[token_id], as_ids)
        entry["top_logprobs"] = [_entry(other, logprob, as_ids) for other, logprob in top]
        content.append(msgspec.Raw(_encode(entry)))  # encoded one position at a time, so that other threads can run
    return {"content": content}


def _entry(token_id: int, logprob: Logprob, as_ids: bool) -> dict[str, Any]:
    text = wire.token_name(token_id, logprob, as_ids)
    raw = logprob.token_bytes if logprob.token_bytes is not None else text.encode()
    return {"token": text, "logprob": wire.finite(logprob.logprob), "bytes": list(raw)}
