"""Figures for metrics, exporters and events: of an engine, and of a request that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from quire.adapter_info import AdapterStats


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """Counters since start (`num_…_total`) and gauges of now, of one model.

    num_deferred: of those that wait, seqs whose grammar is being compiled or whose adapters have no seats yet.
    num_media_encoded_total: media that went through the tower; …_found_total: whose rows were there when needed.
    num_corrupted_total: requests that ended because logits were not finite. iteration_tokens: of each step since the
    last time; ended_preemptions: of each request that ended since, how often its seqs had to give up their pages.
    """

    model: str
    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    num_swapped: int = 0
    num_pages: int = 0
    num_pages_used: int = 0
    num_pages_cached: int = 0
    num_slots_used: int = 0
    num_steps_total: int = 0
    num_prompt_tokens_total: int = 0
    num_cached_tokens_total: int = 0
    num_queried_tokens_total: int = 0
    num_generated_tokens_total: int = 0
    num_preemptions_recompute_total: int = 0
    num_preemptions_swap_total: int = 0
    num_media_encoded_total: int = 0
    num_media_found_total: int = 0
    num_encoder_cache_bytes: int = 0
    num_corrupted_total: int = 0
    iteration_tokens: tuple[int, ...] = ()
    ended_preemptions: tuple[int, ...] = ()
    adapters: AdapterStats | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSummary:
    """One ended request and the names of its adapters, for events and metrics. Times in seconds; None: not reached."""

    request_id: str
    model: str
    adapters: tuple[str, ...]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    n: int
    max_tokens: int | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    e2e_s: float
    first_token_s: float | None
