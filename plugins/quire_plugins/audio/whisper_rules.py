"""Rules for Whisper's tokens: suppressed tokens, and timestamps in pairs that never decrease.

<|0.00|> text <|2.40|><|2.40|> more text <|5.12|> end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.params.sampling import SamplingParams
from quire.records import Context, ProcessorRow
from quire_models.loading.json_files import read_object


@dataclass(frozen=True, kw_only=True)
class TimestampState:
    """Timestamps are the ids from `begin` on, in steps of time. end: id of the end of text; ids below it are text.

    off: the token for "no timestamps". latest: largest first timestamp, counted from `begin`.
    """

    begin: int
    end: int
    off: int
    latest: int | None


@dataclass(frozen=True, slots=True)
class WhisperState:
    """State of one seq. never, not_first: int64 ids. times: None = no rules for timestamps.

    timeless: the first id of a timestamp, if timestamps are off.
    """

    never: Tensor
    not_first: Tensor
    times: TimestampState | None
    timeless: int | None = None


class WhisperLogitsProcessor:
    """The rules of one model: those of generation_config.json, unless a request overrides them.

    return_timestamps: true = timestamps in pairs, false = none; absent = no rule.
    """

    def __init__(self, context: Context, architecture: str) -> None:
        """Does nothing for models of another architecture."""
        self._vocab_size = context.vocab_size or 0
        self._speaks = architecture in (context.config.get("architectures") or ())
        self._settings = settings_of(context) if self._speaks else {}
        self._default = {name: self._ids(self._settings.get(name) or ()) for name in LISTS}

    def start(self, params: SamplingParams) -> WhisperState | None:
        """Raises BadRequest for fields that this model does not support."""
        if not self._speaks:
            given = next((name for name in ("return_timestamps", *LISTS) if name in params.extra), None)
            if given is not None:
                raise BadRequest(f"`{given}` is for models that write down speech; this one does not.", given)
            return None
        never, not_first = (self._chosen(name, params) for name in LISTS)
        wanted = params.extra.get("return_timestamps")
        times = None if wanted is None else self._times()
        if times is not None and not wanted:
            return WhisperState(never, not_first, None, timeless=times.begin)
        return WhisperState(never, not_first, times) if len(never) or len(not_first) or times else None

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """logits [rows, vocab]: minus infinity for what each row may not sample."""
        for line, row in zip(logits, rows, strict=True):
            uses: WhisperState = row.state
            line.index_fill_(0, uses.never.to(line.device), -torch.inf)
            if not row.output_ids:
                line.index_fill_(0, uses.not_first.to(line.device), -torch.inf)
            if uses.timeless is not None:
                line[uses.timeless :] = -torch.inf
            if uses.times is not None:
                _keep_time(line, row.output_ids, uses.times)

    def _chosen(self, name: str, params: SamplingParams) -> Tensor:
        """The list of the request; otherwise the model's list, unless the request sets `allowed_token_ids`."""
        given = params.extra.get(name)
        if given is None:
            return self._default[name] if params.allowed_token_ids is None else self._ids(())
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in given):
            raise BadRequest(f"`{name}` must be a list of token ids, got {given!r:.80}.", name)
        return self._ids(given)

    def _ids(self, ids: Sequence[int]) -> Tensor:
        """The ids inside the vocabulary; lists made for a larger vocabulary may contain others."""
        return torch.tensor([token for token in ids if token < self._vocab_size], dtype=torch.int64)

    def _times(self) -> TimestampState:
        off, end = self._settings.get("no_timestamps_token_id"), end_of_text(self._settings)
        if not isinstance(off, int) or end is None:
            raise BadRequest(
                "This model's generation_config.json has no `no_timestamps_token_id`, or no `eos_token_id`: it is not"
                " known which tokens are timestamps.",
                "return_timestamps",
            )
        return TimestampState(begin=off + 1, end=end, off=off, latest=self._settings.get("max_initial_timestamp_index"))


LISTS = ("suppress_tokens", "begin_suppress_tokens")


def settings_of(context: Context) -> Mapping[str, Any]:
    """generation_config.json; for old folders without it, config.json."""
    assert context.folder is not None, "rules are made for a model"
    found = read_object(Path(context.folder), "generation_config.json")
    return context.config if found is None else found


def end_of_text(settings: Mapping[str, Any]) -> int | None:
    """The id of the end of text; ids below it are text, ids above it are special."""
    ids = settings.get("eos_token_id")
    first = ids[0] if isinstance(ids, list) and ids else ids
    return first if isinstance(first, int) else None


def _keep_time(line: Tensor, said: Sequence[int], times: TimestampState) -> None:
    """Applies the rules of timestamps. line: logits [vocab] after the tokens `said`."""
    begin = times.begin
    line[times.off] = -torch.inf
    if not said:
        line[:begin] = -torch.inf
        if times.latest is not None:
            line[begin + times.latest + 1 :] = -torch.inf
    else:
        _keep_pairs(line, said, times)
    stamps, text = line[begin:], line[:begin]
    if stamps.numel() and stamps.logsumexp(0) > text.amax():  # together more likely than any text token
        text.fill_(-torch.inf)


def _keep_pairs(line: Tensor, said: Sequence[int], times: TimestampState) -> None:
    """After one timestamp comes its pair or the end; after two comes text; timestamps do not decrease."""
    begin = times.begin
    is_stamp = said[-1] >= begin
    is_second = is_stamp and (len(said) < 2 or said[-2] >= begin)
    if is_second:
        line[begin:] = -torch.inf
    elif is_stamp:
        line[: times.end] = -torch.inf
    last = next((token for token in reversed(said) if token >= begin), None)
    if last is not None:
        again = is_stamp and not is_second
        line[begin : last + (not again)] = -torch.inf
