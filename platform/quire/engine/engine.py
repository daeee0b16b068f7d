"""Engine: one loaded model that takes requests and gives back deltas, one step at a time.

    add ─▶ step: plan → run → commit ─▶ deltas

It joins the scheduler, which knows no tensors, and the runner, which knows no requests. One thread
uses it. It knows no HTTP, no text and no plugin by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from quire.adapter_info import AdapterInfo
from quire.config import ModelConfig
from quire.counting import step_fault
from quire.engine.adapter_shelf import AdapterShelf
from quire.engine.adapters import Adapters
from quire.engine.background import BackgroundWork
from quire.engine.checks import check_request
from quire.engine.constraints import Constraints
from quire.engine.grammars import Grammars
from quire.engine.limits import limits_of
from quire.engine.load import Loaded, available_bytes, choose_device, load_model
from quire.engine.measure import activation_bytes
from quire.engine.memory import fit, host_pages, reserve, step_tokens
from quire.engine.memory_ledger import MemoryBudget, MemoryLedger
from quire.engine.pages import PagePool
from quire.engine.policy import choose_policy
from quire.engine.poolers import Poolers
from quire.engine.populate import populate
from quire.engine.processors import Processors
from quire.engine.runner import Runner
from quire.engine.runtimes import Runtimes
from quire.engine.scheduler import Scheduler
from quire.engine.sizes import Sizes
from quire.engine.towers import Towers
from quire.errors import QuireError
from quire.isolated_calls import IsolatedCalls
from quire.pooling import PoolingParams
from quire.records import Context, Registry
from quire.sampling import SamplingParams
from quire.types import Delta, EngineStats, Plan, Request
from quire_models.checkpoint import raw_config

log = logging.getLogger(__name__)

PAUSE_S = 0.001
"""How long a step that can do nothing waits for a grammar to be compiled, or an adapter to get its seat."""


class Engine:
    """Serves one model. Not safe to use from several threads at once."""

    def __init__(
        self,
        loaded: Loaded,
        config: ModelConfig,
        registry: Registry,
        budget: MemoryBudget,
        tokenizer: Callable[[], object] | None = None,
    ) -> None:
        """budget: of its device's memory. tokenizer: gives the text side's, for plugins; called at most once."""
        self.loaded, self.info = loaded, loaded.info
        self._registry = registry
        self._tokenizer = cache(tokenizer) if tokenizer else None
        self._limits = config.max_loras, config.max_lora_rank
        self._config_json = raw_config(Path(loaded.info.folder))
        apart = IsolatedCalls(config.lora_load_timeout_s)
        # before pages are counted: runtimes take device memory for their seats
        runtimes = Runtimes(registry, lambda plugin: replace(self._context(plugin), apart=apart), loaded.module)
        self._adapters = Adapters(runtimes, config, loaded.info.name, apart)
        max_tokens, whole = step_tokens(config, loaded), loaded.decoder.whole_prompts
        num_pages, max_model_len = fit(
            config,
            loaded,
            lambda: activation_bytes(loaded, config, max_tokens),
            budget,
        )
        num_host_pages = host_pages(config, loaded, num_pages)
        self.memory = reserve(config, loaded, num_pages, num_host_pages, budget)
        self.info = replace(loaded.info, num_pages=num_pages, max_model_len=max_model_len)
        self._processors = Processors(registry, self._context)
        self._grammars = Grammars(
            registry,
            self._context,
            Constraints(
                registry, self.info.vocab_size, loaded.eos_ids, self._tokenizer, config.structured_outputs_token_time_s
            ),
            config.structured_outputs_backend,
            config.structured_outputs_timeout_s,
            config.structured_outputs_cache_bytes,
        )
        self._scheduler = Scheduler(
            PagePool(num_pages, config.page_size, config.enable_prefix_caching and not whole),
            choose_policy(registry, config.scheduling_policy, self._context),
            limits_of(config, loaded, max_model_len=max_model_len, max_tokens=max_tokens),
            PagePool(num_host_pages, config.page_size, caching=False),
            self._ready,
        )
        sizes = Sizes(
            num_pages=num_pages,
            num_host_pages=num_host_pages,
            page_size=config.page_size,
            max_tokens=max_tokens,
            max_rows=min(config.max_num_seqs, max_tokens),
            max_model_len=max_model_len,
        )
        self._towers = Towers.of(loaded, registry, self._adapters, config)
        self._runner = Runner(
            loaded,
            sizes,
            self._processors,
            self._grammars,
            self._adapters,
            self._towers,
            Poolers(loaded.pooling.poolers, loaded.module.heads, loaded.dtype, config.batch_invariant),
            config.batch_invariant,
            lambda error: step_fault(registry, loaded.info.name, error).message,
        )
        self._broken: dict[str, QuireError] = {}
        self.failed_steps = 0  # since the last step that computed something
        self._preparation = BackgroundWork(self._prepare)

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        registry: Registry,
        budget: MemoryBudget | None = None,
        tokenizer: Callable[[], object] | None = None,
    ) -> Engine:
        """Load the model that `config` names and make an engine for it.

        budget: what it may take of its device's memory, None = of what is free now.
        Raises StartupError: a setting cannot work, or the model cannot be loaded.
        """
        budget = budget or MemoryLedger(available_bytes(choose_device(config.device))).budget()
        return cls(load_model(config, registry, budget.total), config, registry, budget, tokenizer)

    def _prepare(self, stopping: Event) -> None:
        """What would keep the first requests waiting, beside them."""
        if self.loaded.decoder.generates and self._tokenizer is not None and self._tokenizer() is not None:
            self._grammars.prepare()
        populate(self._runner, stopping, lambda: self.has_work)

    def _context(self, plugin: str) -> Context:
        info, (max_seats, max_rank) = self.info, self._limits
        return Context(
            options=self._registry.options.get(plugin, {}),
            model=info.name,
            vocab_size=info.vocab_size,
            tokenizer=self._tokenizer() if self._tokenizer else None,
            device=info.device,
            config=self._config_json,
            folder=info.folder,
            names=self.loaded.names,
            max_seats=max_seats,
            max_rank=max_rank,
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Accept a request, to be answered by the steps to come.

        Raises BadRequest (it asks for what cannot be), Overloaded (too many wait) or PluginFailed; then
        nothing was accepted.
        """
        check_request(request, self.info)
        params = request.params
        if isinstance(params, PoolingParams):
            request = replace(request, params=self._from_cache(params))
        if isinstance(params, SamplingParams):
            self._processors.check(params)
        self._grammars.request(params)
        with self._adapters.entering(request) as entered:
            self._scheduler.add(self._salted(entered))

    def _from_cache(self, params: PoolingParams) -> PoolingParams:
        """The same, saying whether the hidden states of the prompt's end are enough."""
        return replace(params, reads_cache=self.loaded.pooling.poolers[params.task].take == "last")

    def _salted(self, request: Request) -> Request:
        """The request, its cache salt saying what its length does to keys (see `Decoder.kv_variant`)."""
        variant = self.loaded.decoder.kv_variant(len(request.prompt.token_ids))
        if not variant:
            return request
        return replace(request, cache_salt=f"{variant}:{request.cache_salt or ''}")

    def _ready(self, request: Request) -> bool | None:
        """Whether nothing a request needs is missing; one that can never have it ends in this step.

        None: its adapters are, so that asking for others with the same is of no use.
        """
        try:
            return self._grammars.compiled(request.params) and self._adapters.ready(request)
        except QuireError as error:
            self._broken[request.id] = error
            return False

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one of its seqs; no delta tells of it. Unknown ids are ignored."""
        self._scheduler.abort(request_id, index)
        if not self._scheduler.knows(request_id):
            self._adapters.leave(request_id)

    def step(self, max_tokens: int | None = None) -> list[Delta]:
        """Compute at most `max_tokens` tokens and say what came of them.

        If the model fails, the requests that had begun end with an error. Raises what fails beside it.
        """
        try:
            return self._step(max_tokens)
        except Exception:
            self.failed_steps += 1
            raise

    def _step(self, max_tokens: int | None) -> list[Delta]:
        plan = self._scheduler.plan(max_tokens)
        if not plan.chunks and not self._broken:
            self._grammars.pause(PAUSE_S)
            self._adapters.pause(PAUSE_S)
        try:
            result = self._runner.run(plan)
        except Exception as error:
            return self._told(self._give_up(plan, error))
        deltas = self._end_broken() + self._scheduler.commit(plan, result)
        if plan.chunks:  # a step that computed nothing is no sign that the model works again
            self.failed_steps = 0
        return self._told(deltas)

    def _told(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas; requests that ended with them leave their adapters."""
        for delta in deltas:
            if delta.finish_reason is not None and not self._scheduler.knows(delta.request_id):
                self._adapters.leave(delta.request_id)
        return deltas

    def _end_broken(self) -> list[Delta]:
        """End the requests that will never be ready."""
        if not self._broken:
            return []
        broken, self._broken = self._broken, {}
        return [delta for request_id, error in broken.items() for delta in self._scheduler.fail(request_id, error)]

    def _give_up(self, plan: Plan, error: Exception) -> list[Delta]:
        """Nobody knows which pages a failed step has moved: all who hold some end."""
        log.exception("A step of %d tokens failed", plan.num_tokens)
        fault = step_fault(self._registry, self.info.name, error)
        deltas = self._scheduler.fail_begun(fault)
        self._runner.reset()
        self.failed_steps += 1
        return deltas

    @property
    def adapters(self) -> AdapterShelf:
        """The adapters that there are; they are loaded and unloaded there, from any thread, beside the steps."""
        return self._adapters.shelf

    def load_adapter(self, name: str, path: Path, **options: Any) -> AdapterInfo:
        """Read an adapter and return when requests may name it; see `AdapterShelf.load` for the options and errors."""
        return self.adapters.load(name, path, **options).result()

    def unload_adapter(self, name: str) -> None:
        """Let no request name an adapter any more; those in flight finish on it. Raises NotFound."""
        self.adapters.unload(name).result()

    def reset_prefix_cache(self) -> int:
        """Forget the cached pages of ended requests; how many became free."""
        return self._scheduler.reset_prefix_cache()

    def stats(self) -> EngineStats:
        """Counters since start and gauges of now."""
        deferred = self._grammars.num_compiling(self._scheduler.waiting()) + self._adapters.num_deferred
        stats, adapters = self._scheduler.stats(self.info.name), self._adapters.stats()
        return self._towers.counted(replace(stats, num_deferred=deferred, adapters=adapters))

    def close(self) -> None:
        """Stop what runs beside the steps and let go of the device's memory."""
        self._preparation.stop()
        self._grammars.close()
        self._adapters.close()
        del self._runner, self.loaded
