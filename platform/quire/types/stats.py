"""Statistics for metrics, exporters and events: of an engine, and of an ended request."""

from __future__ import annotations

from dataclasses import dataclass

from quire.types.adapter_info import AdapterStats


@dataclass(frozen=True, kw_only=True, slots=True)
class StateStats:
    """Slots of the state of recurrent blocks. hits: requests and resumed sequences that began with a checkpoint."""

    num_slots: int
    num_slots_used: int
    num_checkpoints: int
    num_checkpoints_total: int
    num_hits_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationStats:
    """Drafts of speculative decoding since the start.

    num_drafts_total: steps of a sequence that verified drafted tokens. num_accepted_per_position: how often the first,
    second, … drafted token was accepted.
    """

    num_drafts_total: int = 0
    num_draft_tokens_total: int = 0
    num_accepted_per_position: tuple[int, ...] = ()

    @property
    def num_accepted_tokens_total(self) -> int:
        return sum(self.num_accepted_per_position)


@dataclass(frozen=True, kw_only=True, slots=True)
class KvTierStats:
    """One tier of KV pages beside the device's memory. num_misses_total: pages that the tier lost after it was asked
    whether it has them. num_corrupted_total: damaged or expired ones. num_errors_total: calls that failed or took too
    long.
    """

    name: str
    num_bytes: int = 0
    num_pages: int = 0
    num_hits_total: int = 0
    num_misses_total: int = 0
    num_corrupted_total: int = 0
    num_errors_total: int = 0
    num_evictions_total: int = 0
    num_read_bytes_total: int = 0
    num_written_bytes_total: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KvTiersStats:
    """The tiers of one model's KV pages, which models of a process share.

    num_queried_tokens_total: prompt tokens that were looked up, since the device did not have them.
    num_hit_tokens_total: those of them that came from a tier. num_dropped_total: pages that were not written, because
    the queue was full.
    """

    num_queried_tokens_total: int = 0
    num_hit_tokens_total: int = 0
    num_dropped_total: int = 0
    tiers: tuple[KvTierStats, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """Counters since the start (`num_…_total`) and current gauges of one model in one engine process.

    engine: number of the engine process, 0 if there is one.
    num_deferred: waiting sequences whose grammar is being compiled, or whose adapters have no slot yet.
    num_media_encoded_total: media that went through the tower; num_media_found_total: media found in the encoder cache.
    num_corrupted_total: requests that ended because logits were not finite. iteration_tokens: tokens of each step since
    the previous report; ended_preemptions: preemptions of each request that ended since then. state: of models with
    state. speculation: of models with a drafter, and of others once a request had a prediction. kv_tiers: of models
    whose pages are also kept elsewhere.
    """

    model: str
    engine: int = 0
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
    state: StateStats | None = None
    speculation: SpeculationStats | None = None
    kv_tiers: KvTiersStats | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSummary:
    """One ended request, for events and metrics. Times are in seconds; None = that stage was not reached.

    client: the name under which its client got a share of the engine, see `RouterContext.client_of`.
    """

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
    client: str = ""


@dataclass(frozen=True, slots=True)
class ClientUsage:
    """Ended requests of one client and their tokens. client: see `RouterContext.client_of`."""

    client: str
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0

    def plus(self, summary: RequestSummary) -> ClientUsage:
        """With one more request."""
        return ClientUsage(
            self.client,
            self.num_requests + 1,
            self.num_prompt_tokens + summary.num_prompt_tokens,
            self.num_generated_tokens + summary.num_generated_tokens,
        )
