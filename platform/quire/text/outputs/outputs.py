"""Outputs of requests, with the names of vLLM, and the `Collector` that builds them from the engine's deltas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import msgspec

from quire.errors import from_wire
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams
from quire.text.outputs.detokenizer import SeqDetokenizer
from quire.text.outputs.logprobs import LazyLogprobs, Logprob, PositionLogprobs, with_texts
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import FinishReason, Request, SeqDelta, TokenLogprobs

__all__ = ["Collector", "CompletionOutput", "Logprob", "TextDelta", "RequestOutput"]

LogprobsIn: TypeAlias = Literal["deltas and result", "deltas", "result"]


class TextDelta(msgspec.Struct, frozen=True):  # one per token: created in a third of the time of a dataclass
    """New text and tokens of one completion, for streaming.

    `text` may be empty while `token_ids` is not (the text is held back), and the other way round at the end. logprobs
    and text_offsets (characters of the completion before each token) belong to token_ids; both are None unless
    log-probabilities were requested.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] | None = None
    text_offsets: tuple[int, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(kw_only=True)
class CompletionOutput:
    """One completion of a prompt.

    logprobs: for each token, a map from token id to `Logprob`. text_offsets: characters before each token.
    stop_reason: the stop string or stop token id that ended it; None for the end of text.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[PositionLogprobs] | None = None
    text_offsets: list[int] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        """Whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(kw_only=True)
class RequestOutput:
    """A prompt and its completions. prompt_logprobs[0] is None because nothing predicts the first token."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    lora_request: Any = None
    metrics: Any = None


@dataclass
class _Completion:
    """Output of one sequence so far."""

    text: SeqDetokenizer
    output: CompletionOutput
    texts: list[str] = field(default_factory=list)
    sum_logprob: float = 0.0
    scored: bool = False
    entries: list[TokenLogprobs] = field(default_factory=list)

    def finalized(self) -> CompletionOutput:
        """The output with its text joined from the deltas."""
        self.output.text = "".join(self.texts)
        return self.output


class Collector:
    """Turns the deltas of one request into `TextDelta`s and, at the end, into a `RequestOutput`. Not thread-safe.

    After each `push`, `aborts` lists the sequences that the engine must end because a stop string was found;
    `take_aborts` returns them as (request id, index) and clears the list. With best_of > n, and for beams, `push`
    returns nothing until the last delta, because the best completions are not known earlier. `prompt_logprobs` and
    `num_cached_tokens` are set by the first delta.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        eos_ids: Collection[int] = (),
        logprobs_in: LogprobsIn = "deltas and result",
    ) -> None:
        """request: the request of the caller, not the one that `inputs.to_engine_request` returns.

        eos_ids: end-of-text tokens of the model besides those of the tokenizer. logprobs_in: where log-probabilities
        are needed; if only in the result, the texts of their tokens are decoded on access.
        """
        params = request.params
        assert not isinstance(params, PoolingParams), "pooling requests have no text"
        self.request = request
        self.done = False
        self.num_cached_tokens: int | None = None
        self.prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self._logprobs_in = logprobs_in
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._beams = isinstance(params, BeamSearchParams)
        self._num_outputs = params.num_seqs if isinstance(params, BeamSearchParams) else params.n
        self._show_logprobs = not isinstance(params, BeamSearchParams) and params.logprobs is not None
        self._selects_best = self._beams or params.num_seqs > self._num_outputs
        self._completions = [self._new_completion(index) for index in range(params.num_seqs)]
        self.aborts: list[tuple[str, int]] = []

    def _new_completion(self, index: int) -> _Completion:
        shown: list[PositionLogprobs] | None = [] if self._show_logprobs else None
        offsets: list[int] | None = [] if self._show_logprobs else None
        output = CompletionOutput(index=index, text="", token_ids=[], logprobs=shown, text_offsets=offsets)
        return _Completion(SeqDetokenizer(self.request, self._tokenizer, self._eos_ids), output)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens of all completions so far, including those that `best_of` drops."""
        return sum(len(completion.output.token_ids) for completion in self._completions)

    @property
    def token_ids(self) -> list[list[int]]:
        """The tokens of each completion so far, including completions that `best_of` drops."""
        return [completion.output.token_ids for completion in self._completions]

    def take_aborts(self) -> list[tuple[str, int]]:
        """(request id, index) of the sequences that the engine must end. Each is returned once."""
        aborts, self.aborts = self.aborts, []
        return aborts

    def push(self, delta: SeqDelta) -> list[TextDelta]:
        """Add a delta of the engine; returns new text. Raises the error that the delta carries, if any."""
        if delta.error is not None:
            raise from_wire(delta.error)
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            lazy = LazyLogprobs(delta.prompt_logprobs, self._tokenizer)
            self.prompt_logprobs = list(lazy) if self._logprobs_in == "deltas and result" else lazy
        completion = self._completions[delta.index]
        if completion.output.finish_reason is not None:
            return []  # the engine sampled these tokens before it received the abort
        if (
            completion.text.is_simple
            and delta.finish_reason is None
            and delta.logprobs is None
            and not self._selects_best
        ):
            text = completion.text.decode(delta.token_ids)
            completion.texts.append(text)
            completion.output.token_ids.extend(delta.token_ids)
            return [TextDelta(delta.index, text, delta.token_ids)]
        text_delta = self._add(completion, delta)
        if text_delta.finish_reason is not None:
            self.done = all(one.output.finish_reason is not None for one in self._completions)
        if not self._selects_best:
            return [text_delta]
        return [_as_delta(output) for output in self._best()] if self.done else []

    def _add(self, completion: _Completion, delta: SeqDelta) -> TextDelta:
        output = completion.output
        decoded = completion.text.push(delta)
        finish, reason = delta.finish_reason, delta.stop_reason
        if decoded.matched is not None:
            if finish is None:
                self.aborts.append((self.request.id, output.index))
            finish, reason = "stop", decoded.matched
        logprobs = None
        if delta.logprobs is not None:
            logprobs = self._score(completion, delta.logprobs[: len(decoded.token_ids)])
        if delta.cumulative_logprob is not None:
            output.cumulative_logprob = delta.cumulative_logprob
        text_delta = TextDelta(
            index=output.index,
            text=decoded.text,
            token_ids=decoded.token_ids,
            logprobs=logprobs,
            text_offsets=decoded.offsets if self._show_logprobs and delta.logprobs is not None else None,
            finish_reason=finish,
            stop_reason=reason,
        )
        completion.texts.append(text_delta.text)
        _append(output, text_delta, keep=self._logprobs_in != "deltas")
        return text_delta

    def _score(self, completion: _Completion, entries: Sequence[TokenLogprobs]) -> tuple[PositionLogprobs, ...] | None:
        """Add to the sum of the completion; returns the log-probabilities with texts, if they were requested."""
        completion.scored = True
        for entry in entries:
            completion.sum_logprob += entry.logprob
        if not self._show_logprobs:
            return None
        completion.output.cumulative_logprob = completion.sum_logprob
        if self._logprobs_in == "result":
            completion.entries.extend(entries)
            return None
        return tuple(with_texts(entry, self._tokenizer) for entry in entries)

    def _finalized(self, completion: _Completion) -> CompletionOutput:
        output = completion.finalized()
        if self._show_logprobs and self._logprobs_in == "result":
            output.logprobs = cast("Sequence[PositionLogprobs]", LazyLogprobs(completion.entries, self._tokenizer))
        return output

    def _best(self) -> list[CompletionOutput]:
        """The n completions with the highest mean log-probability, best first and renumbered."""
        if self._beams or self._num_outputs == len(self._completions):
            return [self._finalized(completion) for completion in self._completions]
        ranked = sorted(self._completions, key=_mean_logprob, reverse=True)  # stable: ties keep their order
        return [replace(self._finalized(one), index=i) for i, one in enumerate(ranked[: self._num_outputs])]

    def result(self) -> RequestOutput:
        """The output so far; it is final once `done` is True."""
        outputs = (
            self._best() if self.done else [self._finalized(one) for one in self._completions[: self._num_outputs]]
        )
        return RequestOutput(
            request_id=self.request.id,
            prompt=self.request.prompt.text,
            prompt_token_ids=list(self.request.prompt.token_ids),
            outputs=outputs,
            finished=self.done,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            lora_request=self.request.adapters or None,
        )


def _mean_logprob(completion: _Completion) -> float:
    output = completion.output
    total = completion.sum_logprob if completion.scored else output.cumulative_logprob
    return (total or 0.0) / max(1, len(output.token_ids))


def _append(output: CompletionOutput, delta: TextDelta, keep: bool) -> None:
    output.token_ids.extend(delta.token_ids)
    if keep and delta.logprobs is not None and isinstance(output.logprobs, list):
        output.logprobs.extend(delta.logprobs)
    if keep and delta.text_offsets is not None and output.text_offsets is not None:
        output.text_offsets.extend(delta.text_offsets)
    output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason


def _as_delta(output: CompletionOutput) -> TextDelta:
    """A finished completion as a single delta."""
    return TextDelta(
        index=output.index,
        text=output.text,
        token_ids=tuple(output.token_ids),
        logprobs=None if output.logprobs is None else tuple(output.logprobs),
        text_offsets=None if output.text_offsets is None else tuple(output.text_offsets),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
