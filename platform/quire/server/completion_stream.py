"""The stream of `/v1/completions`: chunks of text as it is written."""

from __future__ import annotations

from typing import Any

from quire.server import wire
from quire.server.completion_logprobs import Lead, Logprobs
from quire.server.completions import Call, common, count_tokens, lead_of
from quire.server.service import fingerprint
from quire.text.outputs import Piece


class CompletionStream:
    """Turns pieces into events."""

    def __init__(self, call: Call) -> None:
        self._call, self.job = call, call.job
        self._chunks = wire.Chunks(common(call))
        self._leads: dict[int, Lead] = {}
        self._begun: set[tuple[int, int]] = set()
        self._usage = wire.UsageWanted.of(call.fields.stream_options, call.service.config)
        fields = call.fields
        self._plain = not (
            fields.echo or call.scoring or fields.logprobs is not None or fields.return_token_ids or self._usage.always
        )
        self._texts: dict[tuple[int, int], wire.TextEvents] = {}

    def last(self) -> bytes:
        """The event with the usage, if it is wanted."""
        if not self._usage.at_end:
            return b""
        cached = sum(collector.num_cached_tokens or 0 for collector in self._call.job.collectors)
        return self._chunks.final(count_tokens(self._call, cached), system_fingerprint=fingerprint(self._call.served))

    def piece(self, number: int, piece: Piece) -> bytes:
        """The event for a piece, or nothing."""
        if self._plain and piece.finish_reason is None:
            if not (piece.token_ids or piece.text):
                return b""  # but a token whose text is held back or empty still counts for who measures
            events = self._texts.get((number, piece.index))
            return (events or self._text_events(number, piece.index)).event(piece.text)
        call = self._call
        first = (number, piece.index) not in self._begun
        self._begun.add((number, piece.index))
        lead = self._lead(number) if call.fields.echo else None
        if call.scoring and not first:
            return b""
        if not (piece.token_ids or piece.text or piece.finish_reason or (lead and first)):
            return b""
        choice = self._choice(number, piece, lead, first)
        return self._chunks.choice(choice, count_tokens(call) if self._usage.always else None)

    def _text_events(self, number: int, index: int) -> wire.TextEvents:
        """The events of one completion that say only text."""
        choice = self._choice(number, Piece(index, wire.HOLE), None, False)
        events = self._texts[number, index] = wire.TextEvents(self._chunks.choice(choice))
        return events

    def _lead(self, number: int) -> Lead:
        if number not in self._leads:
            self._leads[number] = lead_of(self._call, number)
        return self._leads[number]

    def _choice(self, number: int, piece: Piece, lead: Lead | None, first: bool) -> dict[str, Any]:
        call = self._call
        text = "" if call.scoring else piece.text
        choice: dict[str, Any] = {
            "index": number * call.n + piece.index,
            "text": lead.text + text if lead and first else text,
            "logprobs": self._logprobs(piece, lead, first),
            "finish_reason": "length" if call.scoring else piece.finish_reason,
            "stop_reason": None if call.scoring else piece.stop_reason,
        }
        if call.fields.return_token_ids:
            choice["token_ids"] = [] if call.scoring else piece.token_ids
            if first:
                choice["prompt_token_ids"] = call.job.requests[number].prompt.token_ids
        return choice

    def _logprobs(self, piece: Piece, lead: Lead | None, first: bool) -> dict[str, Any] | None:
        if self._call.fields.logprobs is None:
            return None
        logprobs = Logprobs(self._call.fields.return_tokens_as_token_ids or False)
        if lead and first:
            logprobs.add_prompt(lead)
        if not self._call.scoring:
            logprobs.add(piece.token_ids, piece.logprobs, piece.text_offsets, lead.length if lead else 0)
        return logprobs.shape()
