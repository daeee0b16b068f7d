"""What comes out of a request, and how it is collected from the engine's deltas.

Names are those of vLLM's outputs. It knows no HTTP; one `Collector` serves one request, on one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import msgspec

from quire.errors import error_told
from quire.pooling import PoolingParams
from quire.sampling import BeamSearchParams
from quire.text.logprobs import LateLogprobs, Logprob, PositionLogprobs, describe
from quire.text.seqtext import SeqText
from quire.text.tokenizer import Tokenizer
from quire.types import Delta, FinishReason, Request, TokenLogprobs

__all__ = ["Collector", "CompletionOutput", "Logprob", "Piece", "RequestOutput"]

LogprobsIn: TypeAlias = Literal["pieces and result", "pieces", "result"]


class Piece(msgspec.Struct, frozen=True):  # one is made per token, and this takes a third of a dataclass' time
    """What a delta added to one completion, for streaming.

    `text` may be empty while `token_ids` is not (the text is held back), and the other way round at
    the end. logprobs and text_offsets (characters before each token, from the completion's start)
    go with token_ids; both are None unless logprobs were asked for.
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

    logprobs: per token, a map from token id to `Logprob`. text_offsets: characters before each token.
    stop_reason: the stop string or stop token id that ended it, None for the end of text.
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
        """Whether nothing will be added."""
        return self.finish_reason is not None


@dataclass(kw_only=True)
class RequestOutput:
    """A prompt and its completions. prompt_logprobs[0] is None: nothing predicts the first token."""

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
    """What has come of one seq."""

    text: SeqText
    output: CompletionOutput
    texts: list[str] = field(default_factory=list)
    sum_logprob: float = 0.0
    scored: bool = False
    entries: list[TokenLogprobs] = field(default_factory=list)

    def settled(self) -> CompletionOutput:
        """The output, its text put together from the pieces."""
        self.output.text = "".join(self.texts)
        return self.output


class Collector:
    """Turns the deltas of one request into pieces of text and, at the end, into a `RequestOutput`.

    After each `push`, `aborts` names the seqs that the engine must end: a stop string was found. `take_aborts`
    gives them as (request id, index) and clears the list.
    With best_of > n (and for beams) `push` gives nothing until the last delta, as the best are not known
    before. `prompt_logprobs` and `num_cached_tokens` are there after the first delta.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        eos_ids: Collection[int] = (),
        logprobs_in: LogprobsIn = "pieces and result",
    ) -> None:
        """`request` is the client's, not what `inputs.for_engine` made of it for the engine.

        eos_ids: the model's ends of text, where it has more than the tokenizer names. logprobs_in: where they are
        needed; those of a result alone get their texts when they are read.
        """
        params = request.params
        assert not isinstance(params, PoolingParams), "a prompt that is pooled gives no text"
        self.request = request
        self.done = False
        self.num_cached_tokens: int | None = None
        self.prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self._logprobs_in = logprobs_in
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._beams = isinstance(params, BeamSearchParams)
        self._wanted = params.num_seqs if isinstance(params, BeamSearchParams) else params.n
        self._show_logprobs = not isinstance(params, BeamSearchParams) and params.logprobs is not None
        self._chooses = self._beams or params.num_seqs > self._wanted
        self._completions = [self._new_completion(index) for index in range(params.num_seqs)]
        self.aborts: list[tuple[str, int]] = []

    def _new_completion(self, index: int) -> _Completion:
        shown: list[PositionLogprobs] | None = [] if self._show_logprobs else None
        offsets: list[int] | None = [] if self._show_logprobs else None
        output = CompletionOutput(index=index, text="", token_ids=[], logprobs=shown, text_offsets=offsets)
        return _Completion(SeqText(self.request, self._tokenizer, self._eos_ids), output)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all completions so far, those that `best_of` drops included."""
        return sum(len(completion.output.token_ids) for completion in self._completions)

    @property
    def token_ids(self) -> list[list[int]]:
        """The tokens of each completion so far, those that `best_of` drops included."""
        return [completion.output.token_ids for completion in self._completions]

    def take_aborts(self) -> list[tuple[str, int]]:
        """(request id, index) of seqs that the engine must end; each is named once."""
        aborts, self.aborts = self.aborts, []
        return aborts

    def push(self, delta: Delta) -> list[Piece]:
        """Take in a delta; raise the error it carries, if any."""
        if delta.error is not None:
            raise error_told(delta.error)
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            late = LateLogprobs(delta.prompt_logprobs, self._tokenizer)
            self.prompt_logprobs = list(late) if self._logprobs_in == "pieces and result" else late
        completion = self._completions[delta.index]
        if completion.output.finish_reason is not None:
            return []  # tokens the engine drew before it heard of the abort
        if completion.text.straight and delta.finish_reason is None and delta.logprobs is None and not self._chooses:
            text = completion.text.decode(delta.token_ids)
            completion.texts.append(text)
            completion.output.token_ids.extend(delta.token_ids)
            return [Piece(delta.index, text, delta.token_ids)]
        piece = self._add(completion, delta)
        if piece.finish_reason is not None:
            self.done = all(one.output.finish_reason is not None for one in self._completions)
        if not self._chooses:
            return [piece]
        return [_whole(output) for output in self._best()] if self.done else []

    def _add(self, completion: _Completion, delta: Delta) -> Piece:
        output = completion.output
        taken = completion.text.push(delta)
        finish, reason = delta.finish_reason, delta.stop_reason
        if taken.matched is not None:
            if finish is None:
                self.aborts.append((self.request.id, output.index))
            finish, reason = "stop", taken.matched
        described = None if delta.logprobs is None else self._score(completion, delta.logprobs[: len(taken.token_ids)])
        if delta.cumulative_logprob is not None:
            output.cumulative_logprob = delta.cumulative_logprob
        piece = Piece(
            index=output.index,
            text=taken.text,
            token_ids=taken.token_ids,
            logprobs=described,
            text_offsets=taken.offsets if self._show_logprobs and delta.logprobs is not None else None,
            finish_reason=finish,
            stop_reason=reason,
        )
        completion.texts.append(piece.text)
        _append(output, piece, keep=self._logprobs_in != "pieces")
        return piece

    def _score(self, completion: _Completion, entries: Sequence[TokenLogprobs]) -> tuple[PositionLogprobs, ...] | None:
        """Add to the completion's sum; the log-probabilities with texts, if they were asked for."""
        completion.scored = True
        for entry in entries:
            completion.sum_logprob += entry.logprob
        if not self._show_logprobs:
            return None
        completion.output.cumulative_logprob = completion.sum_logprob
        if self._logprobs_in == "result":
            completion.entries.extend(entries)
            return None
        return tuple(describe(entry, self._tokenizer) for entry in entries)

    def _settled(self, completion: _Completion) -> CompletionOutput:
        output = completion.settled()
        if self._show_logprobs and self._logprobs_in == "result":
            output.logprobs = cast("Sequence[PositionLogprobs]", LateLogprobs(completion.entries, self._tokenizer))
        return output

    def _best(self) -> list[CompletionOutput]:
        """The wanted completions, best first, numbered anew. Best = highest mean log-probability."""
        if self._beams or self._wanted == len(self._completions):
            return [self._settled(completion) for completion in self._completions]
        ranked = sorted(self._completions, key=_mean_logprob, reverse=True)  # stable: ties keep their order
        return [replace(self._settled(one), index=i) for i, one in enumerate(ranked[: self._wanted])]

    def result(self) -> RequestOutput:
        """All there is so far; final once `done`."""
        outputs = self._best() if self.done else [self._settled(one) for one in self._completions[: self._wanted]]
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


def _append(output: CompletionOutput, piece: Piece, keep: bool) -> None:
    output.token_ids.extend(piece.token_ids)
    if keep and piece.logprobs is not None and isinstance(output.logprobs, list):
        output.logprobs.extend(piece.logprobs)
    if keep and piece.text_offsets is not None and output.text_offsets is not None:
        output.text_offsets.extend(piece.text_offsets)
    output.finish_reason, output.stop_reason = piece.finish_reason, piece.stop_reason


def _whole(output: CompletionOutput) -> Piece:
    """A finished completion as one piece."""
    return Piece(
        index=output.index,
        text=output.text,
        token_ids=tuple(output.token_ids),
        logprobs=None if output.logprobs is None else tuple(output.logprobs),
        text_offsets=None if output.text_offsets is None else tuple(output.text_offsets),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
