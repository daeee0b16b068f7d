"""The text of one sequence while its tokens arrive: decoding, stop strings, and omitted end tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from quire.params.pooling import PoolingParams
from quire.params.sampling import SamplingParams
from quire.text.parsing.scanner import TextScanner
from quire.text.tokenizer.decode import make_decoder
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Request, SeqDelta

CONTEXT_TOKENS = 16
"""Number of last prompt tokens that can affect how the first generated token is decoded."""


class DecodedDelta(NamedTuple):
    """A decoded delta: its tokens up to a stop string, the text that is certain now, and the stop string if found.

    offsets: characters of the completion before each token; () unless log-probabilities are requested.
    """

    token_ids: tuple[int, ...]
    text: str
    offsets: tuple[int, ...]
    matched: str | None


class SeqDetokenizer:
    """Decoding state of one sequence.

    is_simple: there are no stop strings and no text offsets, so that for deltas that do not end the sequence
    `decode(ids)` returns the text that `push` would.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, eos_ids: Collection[int] = ()) -> None:
        params = request.params
        assert not isinstance(params, PoolingParams), "pooling requests have no text"
        plain = params if isinstance(params, SamplingParams) else None
        self._detokenize = plain is None or plain.detokenize
        self._end_ids = frozenset((*eos_ids, *tokenizer.eos_ids)) | tokenizer.special_ids
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = plain.min_tokens if plain else 0
        self._offsets = plain is not None and plain.logprobs is not None
        context = request.prompt.token_ids[-CONTEXT_TOKENS:]
        self._decoder = make_decoder(tokenizer, params.skip_special_tokens, context)
        self._scanner = TextScanner(plain.stop or () if plain else ())
        self._state = self._scanner.start()
        self._one_by_one = self._offsets or bool(self._scanner.stops)
        self.is_simple = self._detokenize and not self._one_by_one
        self.decode = self._decoder.push
        self._num_tokens = 0
        self._num_chars = 0

    def push(self, delta: SeqDelta) -> DecodedDelta:
        """Decode the tokens of a delta. Tokens after the one that completes a stop string are dropped."""
        ids = delta.token_ids
        if not self._detokenize:
            return DecodedDelta(ids, "", (0,) * len(ids), None)
        shown = len(ids) - self._omits_last(delta)
        texts: list[str] = []
        offsets: list[int] = []
        if not self._one_by_one:
            texts.append(self._decoder.push(ids[:shown]))
        for count in range(1, len(ids) + 1) if self._one_by_one else ():
            offsets.append(self._num_chars)
            texts.append(self._token(ids[count - 1]) if count <= shown else "")
            if self._state.matched is not None:
                return DecodedDelta(
                    ids[:count], "".join(texts) + self._stop_text(), tuple(offsets), self._state.matched
                )
        if delta.finish_reason is not None:
            texts.append(self._finish())
        text = "".join(texts)
        if self._state.matched is not None:
            text += self._stop_text()
        return DecodedDelta(ids, text, tuple(offsets), self._state.matched)

    def _omits_last(self, delta: SeqDelta) -> bool:
        """Whether the last token is an end-of-text token or stop token, which has no text in the output."""
        if delta.finish_reason != "stop" or self._keep_stop or not delta.token_ids:
            return False
        last = delta.token_ids[-1]
        return last in self._end_ids if delta.stop_reason is None else delta.stop_reason == last

    def _token(self, token_id: int) -> str:
        self._num_tokens += 1
        return self._advance(self._decoder.push((token_id,)))

    def _advance(self, text: str) -> str:
        self._num_chars += len(text)
        step = self._scanner.step(self._state, text, enabled=self._num_tokens > self._min_tokens)
        self._state = step.state
        return step.text

    def _finish(self) -> str:
        rest = self._decoder.flush()
        if not self._scanner.stops:
            return rest
        text = self._advance(rest)
        step = self._scanner.flush(self._state)
        self._state = step.state
        return text + step.text

    def _stop_text(self) -> str:
        matched = self._state.matched
        return matched if self._keep_stop and matched is not None else ""
