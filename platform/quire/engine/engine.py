"""One loaded model that takes requests and returns deltas, one step at a time.

add ─▶ step: plan → launch → finish → commit ─▶ deltas

A runner that computes beside the host has the next plans launched before the oldest is finished.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from quire.engine.adapters.engine_adapters import EngineAdapters
from quire.engine.adapters.registry import AdapterRegistry
from quire.engine.elastic.kv_pages import kv_pages
from quire.engine.kv_tiers.kv_tiers import KvTiers
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.free_caches import free_caches
from quire.engine.memory.ledger import MemoryUse
from quire.engine.memory.prefault import prefault
from quire.engine.memory.release import release_weights
from quire.engine.multimodal.embeddings import MultimodalEmbeddings
from quire.engine.parallel.leader import Leader
from quire.engine.parallel.one_rank import OneRank
from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.engine.runner.model_runner import ModelRunner
from quire.engine.scheduler.candidates import Admission
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.scheduler import Scheduler
from quire.engine.speculation.speculation import Speculation
from quire.engine.structured.grammars import Grammars
from quire.errors import EngineDied, QuireError
from quire.hooks.call_stats import step_fault
from quire.isolation.background_work import BackgroundWork
from quire.params.pooling import PoolingParams
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.types import EngineStats, ModelInfo, Plan, Request, SeqDelta, StepResult
from quire.types.adapter_info import AdapterInfo
from quire.types.request_validation import validate_request

log = logging.getLogger(__name__)

IDLE_SLEEP_S = 0.005
"""Sleep of a step without chunks: it waits for a grammar to be compiled, or for adapters to get slots."""


@dataclass(frozen=True, kw_only=True)
class EngineParts:
    """What an engine works with; `quire.engine.build.build_engine` makes it.

    memory: what the model takes of its device. tokenizer: that of the text side, for plugins. ranks: those
    that compute the model.
    """

    loaded: LoadedModel
    info: ModelInfo
    registry: Registry
    memory: MemoryUse
    scheduler: Scheduler
    pool: PagePool
    runner: ModelRunner
    processors: LogitsProcessors
    grammars: Grammars
    adapters: EngineAdapters
    towers: MultimodalEmbeddings
    tokenizer: Callable[[], object] | None
    speculation: Speculation
    ranks: Leader | OneRank
    tiers: KvTiers


class _RunFailed(Exception):
    """The runner raised, so that it is unknown which pages it has written."""


class Engine:
    """Serves one model. Not safe to use from several threads at once."""

    def __init__(self, parts: EngineParts) -> None:
        self.loaded, self.info, self.memory = parts.loaded, parts.info, parts.memory
        self._registry, self._scheduler = parts.registry, parts.scheduler
        self._runner = parts.runner
        self.kv_pages = kv_pages(parts.pool, parts.runner, parts.info.max_model_len, parts.scheduler)
        self._processors, self._grammars = parts.processors, parts.grammars
        self._adapters, self._towers = parts.adapters, parts.towers
        self._tokenizer = parts.tokenizer
        self._speculation, self._ranks, self._tiers = parts.speculation, parts.ranks, parts.tiers
        self._has_variants = parts.loaded.decoder.has_kv_cache_variants  # it asks all parts of all blocks
        self._in_flight = deque[LaunchedPlan]()
        self._finished_s = 0.0  # when the latest plan was committed, by `perf_counter`
        self.failed_steps = 0  # since the last step that computed something
        self.num_step_tokens = 0  # computed by the latest step
        self._preparation = BackgroundWork(self._prepare)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something: also to fail, once a rank is lost."""
        return self._scheduler.has_work or bool(self._in_flight) or self._ranks.has_failed

    @property
    def num_generating(self) -> int:
        """Running seqs, not in the background, that compute one token in each step."""
        return self._scheduler.num_generating

    # --- requests -----------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Accept a request, which the next steps will process.

        Raises BadRequest, Overloaded (too many requests wait) or PluginFailed; then the request is not accepted.
        """
        validate_request(request, self.info)
        params, media = request.params, request.prompt.media
        if isinstance(params, PoolingParams):
            last = self.loaded.pooling.poolers[params.task].pooling_type == "last"
            request = replace(request, params=replace(params, reads_cache=last))  # the last hidden state suffices
        else:
            if isinstance(params, SamplingParams) and params.extra:
                self._processors.check(params)
            if params.structured is not None:
                self._grammars.submit(params)
        self._speculation.add(request)
        with self._adapters.acquire(request) if request.adapters or media else nullcontext(request) as acquired:
            self._scheduler.add(salted := self._with_cache_salt(acquired))
            self._tiers.look_up(salted)

    def _with_cache_salt(self, request: Request) -> Request:
        """With the RoPE variant of its prompt length in the cache salt (see `Decoder.kv_cache_variant`)."""
        variant = self.loaded.decoder.kv_cache_variant(len(request.prompt.token_ids)) if self._has_variants else ""
        return replace(request, cache_salt=f"{variant}:{request.cache_salt or ''}") if variant else request

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one of its seqs, without a delta. Unknown ids are ignored."""
        self._scheduler.abort(request_id, index)
        if not self._scheduler.has_request(request_id):
            self._adapters.release(request_id)

    # --- steps --------------------------------------------------------------------------------------

    def step(self, max_tokens: int | None = None, max_background: int = 0) -> list[SeqDelta]:
        """Launch steps of at most `max_tokens` tokens, and return what each seq gained in the oldest that was launched;
        `max_background`: see `Scheduler.plan`.

        If the runner fails, the requests that had begun end with an error. Other exceptions are raised; either way
        `failed_steps` counts the step.
        """
        try:
            self._launch(max_tokens, max_background)
            launched = self._in_flight.popleft()
            plan, self.num_step_tokens = launched.plan, launched.plan.num_tokens
            result, began_s = self._finish(launched), max(self._finished_s, launched.began_s)
            deltas = self._scheduler.commit(plan, result, (perf_counter() - began_s) / max(1, self.num_step_tokens))
            self._finished_s = perf_counter()
            self._speculation.observe(plan, result, self._finished_s - began_s)
        except Exception as error:
            self.failed_steps += 1
            if not isinstance(error, _RunFailed):
                raise
            deltas = self._fail_begun(error)
        else:
            self.failed_steps += bool(result.lost)
            if len(result.failures) + len(result.lost) < len(plan.chunks):  # others do not show that the model works
                self.failed_steps = 0
        self._release_finished(deltas)
        self._tiers.after_step(self.num_step_tokens, len(self._in_flight))
        return deltas

    def _launch(self, max_tokens: int | None, max_background: int) -> None:
        """Launch a plan, and more while the runner takes more and they do not depend on results that are not known."""
        in_flight = self._in_flight
        if not in_flight:
            drafts = self._runner.follow_grammars(self._speculation.propose(self._scheduler.generating))
            plan = self._scheduler.plan(max_tokens, max_background, drafts)
            if not plan.chunks and not plan.failures:
                self._grammars.wait_for_any(IDLE_SLEEP_S)
                self._adapters.yield_cpu(IDLE_SLEEP_S)
            in_flight.append(self._launched(plan))
        most = 1 if self._speculation.is_used else self._runner.max_in_flight
        while in_flight[-1].is_pending and len(in_flight) < most:
            plan = self._scheduler.plan(max_tokens, max_background, ahead=self._runner.knows_samples)
            if plan.is_empty:
                return
            in_flight.append(self._launched(plan))

    def _launched(self, plan: Plan) -> LaunchedPlan:
        try:
            return self._runner.launch(plan)
        except Exception as error:  # raised by `_finish`, after the results of the plans before it
            return LaunchedPlan(plan=plan, error=error)

    def _finish(self, launched: LaunchedPlan) -> StepResult:
        try:
            if launched.error is not None:
                raise launched.error
            return self._runner.finish(launched)
        except Exception as error:
            if not isinstance(error, EngineDied):  # the ranks have said why
                log.exception("A step of %d tokens failed", launched.plan.num_tokens)
            raise _RunFailed from error

    def _fail_begun(self, failure: _RunFailed) -> list[SeqDelta]:
        """End every request that holds pages, since it is unknown which of them the failed step has written."""
        error = failure.__cause__
        assert isinstance(error, Exception)
        self._in_flight.clear()
        deltas = self._scheduler.fail_begun(step_fault(self._registry, self.info.name, error))
        self._runner.reset()
        return deltas

    def _release_finished(self, deltas: list[SeqDelta]) -> None:
        """Release the adapters of requests that ended with these deltas."""
        for delta in deltas:
            if delta.finish_reason is not None and not self._scheduler.has_request(delta.request_id):
                self._adapters.release(delta.request_id)

    # --- background and control ---------------------------------------------------------------------------

    def _prepare(self, stopping: Event) -> None:
        """Work in the background that the first requests would otherwise wait for."""
        if self.loaded.decoder.has_lm_head and self._tokenizer is not None and self._tokenizer() is not None:
            self._grammars.prepare()
        prefault(self._runner, stopping, lambda: self._scheduler.has_requests, self.kv_pages)

    @property
    def adapters(self) -> AdapterRegistry:
        """The registry of adapters, where any thread may load and unload them during steps."""
        return self._adapters.registry

    def load_adapter(self, name: str, path: Path, **options: Any) -> AdapterInfo:
        """Load an adapter, and return when requests can use it. Options and errors: `AdapterRegistry.load`."""
        return self.adapters.load(name, path, **options).result()

    def unload_adapter(self, name: str) -> None:
        """Refuse new requests for an adapter; those in flight finish with it. Raises NotFound."""
        self.adapters.unload(name).result()

    def reset_prefix_cache(self) -> int:
        """Drop the cached pages of ended requests. Returns the number of pages freed."""
        return self._scheduler.reset_prefix_cache()

    def free_caches(self) -> bool:
        """Free the KV cache and forget what it holds; whether the device can. For an engine without requests."""
        return free_caches(self._runner, self._scheduler, self._preparation)

    def stats(self) -> EngineStats:
        """Counters since start and gauges of now."""
        deferred = self._grammars.num_compiling(self._scheduler.waiting()) + self._adapters.num_deferred
        stats, adapters = self._scheduler.stats(self.info.name), self._adapters.stats()
        speculation, tiers = self._speculation.stats(), self._tiers.stats()
        stats = replace(stats, num_deferred=deferred, adapters=adapters, speculation=speculation, kv_tiers=tiers)
        return self._towers.add_stats(stats)

    def close(self) -> None:
        """Stop the threads of the engine and free the memory of its device."""
        self._preparation.stop()
        self._grammars.close()
        self._adapters.close()
        self._tiers.close()
        self._ranks.close()
        release_weights(self.loaded.module)
        del self._runner, self._speculation, self.loaded, self.kv_pages


def try_admit(grammars: Grammars, adapters: EngineAdapters, request: Request) -> Admission | QuireError:
    """Acquire what a request needs besides pages: its compiled grammar and slots for its adapters."""
    try:
        structured = None if isinstance(request.params, PoolingParams) else request.params.structured
        if structured is not None and not grammars.is_ready(structured):
            return Admission.WAIT
        if request.adapters and not adapters.try_admit(request):
            return Admission.WAIT_FOR_ADAPTERS
    except QuireError as error:
        return error
    return Admission.READY
