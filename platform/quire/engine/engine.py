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
from threading import Event, Thread
from typing import Any

from quire.adapter_info import AdapterInfo
from quire.config import ModelConfig
from quire.counting import call_plugin
from quire.engine.adapter_shelf import AdapterShelf
from quire.engine.adapters import Adapters
from quire.engine.checks import check_request
from quire.engine.constraints import Constraints
from quire.engine.grammars import Grammars
from quire.engine.humble import be_humble
from quire.engine.limits import limits_of
from quire.engine.load import Loaded, load_model
from quire.engine.measure import activation_bytes
from quire.engine.memory import fit, host_pages, step_tokens
from quire.engine.pages import PagePool
from quire.engine.poolers import Poolers
from quire.engine.processors import Processors
from quire.engine.runner import Runner
from quire.engine.runtimes import Runtimes
from quire.engine.scheduler import Scheduler
from quire.engine.sizes import Sizes
from quire.engine.towers import Towers
from quire.errors import ConfigError, QuireError
from quire.pooling import PoolingParams
from quire.records import Context, OrdersSeqs, Registry, SchedulerPolicy
from quire.sampling import SamplingParams
from quire.types import Delta, EngineStats, Plan, Request
from quire_models.checkpoint import raw_config

log = logging.getLogger(__name__)

POLICIES = "quire_scheduler_policies"
HOPELESS = 3
"""Steps in a row that may fail before `step` raises."""
PAUSE_S = 0.001
"""How long a step that can do nothing waits for a grammar to be compiled, or an adapter to get its seat."""

POPULATE_PAUSE_S = 0.2
"""How long taking memory from the system rests after each piece, which takes a few milliseconds of a core."""


class Engine:
    """Serves one model. Not safe to use from several threads at once."""

    def __init__(
        self,
        loaded: Loaded,
        config: ModelConfig,
        registry: Registry,
        device_budget: int | None = None,
        tokenizer: Callable[[], object] | None = None,
    ) -> None:
        """`tokenizer` gives the text side's tokenizer, for plugins that need one; it is called at most once."""
        self.loaded, self.info = loaded, loaded.info
        self._registry = registry
        self._tokenizer = cache(tokenizer) if tokenizer else None
        self._limits = config.max_loras, config.max_lora_rank
        self._config_json = raw_config(Path(loaded.info.folder))
        # before pages are counted: runtimes take device memory for their seats
        self._adapters = Adapters(Runtimes(registry, self._context, loaded.module), config, loaded.info.name)
        max_tokens, whole = step_tokens(config, loaded), loaded.decoder.whole_prompts
        num_pages, max_model_len = fit(
            config,
            loaded,
            lambda: activation_bytes(loaded, config, max_tokens),
            device_budget,
        )
        num_host_pages = host_pages(config, loaded, num_pages)
        self.info = replace(loaded.info, num_pages=num_pages, max_model_len=max_model_len)
        self._processors = Processors(registry, self._context)
        self._grammars = Grammars(
            registry,
            self._context,
            Constraints(registry, self.info.vocab_size, loaded.eos_ids, self._tokenizer),
            config.structured_outputs_backend,
            config.structured_outputs_timeout_s,
        )
        self._scheduler = Scheduler(
            PagePool(num_pages, config.page_size, config.enable_prefix_caching and not whole),
            self._policy(config.scheduling_policy),
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
        )
        self._broken: dict[str, QuireError] = {}
        self._num_failures = 0
        self._closing = Event()
        self._preparing = Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        registry: Registry,
        device_budget: int | None = None,
        tokenizer: Callable[[], object] | None = None,
    ) -> Engine:
        """Load the model that `config` names and make an engine for it.

        device_budget: bytes of device memory the model may take in all, None = see --gpu-memory-utilization.
        Raises StartupError: a setting cannot work, or the model cannot be loaded.
        """
        return cls(load_model(config, registry, device_budget), config, registry, device_budget, tokenizer)

    def _prepare(self) -> None:
        """What would keep the first requests waiting, beside them."""
        be_humble()
        if self.loaded.decoder.generates and self._tokenizer is not None and self._tokenizer() is not None:
            self._grammars.prepare()
        self._runner.populate(self._may_populate)

    def _may_populate(self) -> bool:
        """Asked before each piece of memory that is taken beside the steps; while there is work it goes slowly."""
        return not self._closing.wait(POPULATE_PAUSE_S if self.has_work else 0)

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

    def _policy(self, name: str) -> OrdersSeqs:
        known = self._registry.of(POLICIES)
        if name not in known:
            choices = ", ".join(known) or "none, because no loaded plugin brings one"
            raise ConfigError(f"--scheduling-policy must be one of {choices}; got {name!r}.")
        record: SchedulerPolicy = known[name]
        plugin = self._registry.plugin_of(POLICIES, name)
        policy: OrdersSeqs = call_plugin(self._registry, plugin, record.build, self._context(plugin))
        return policy

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

        A step that fails ends the requests that had begun, each with an error; several in a row raise.
        """
        plan = self._scheduler.plan(max_tokens)
        if not plan.chunks and not self._broken:
            self._grammars.pause(PAUSE_S)
            self._adapters.pause(PAUSE_S)
        try:
            result = self._runner.run(plan)
        except Exception as error:
            return self._told(self._give_up(plan, error))
        self._num_failures = 0
        return self._told(self._end_broken() + self._scheduler.commit(plan, result))

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
        fault = QuireError(f"The model `{self.info.name}` failed in a step: {type(error).__name__}: {error}")
        deltas = self._scheduler.fail_begun(fault)
        self._runner.reset()
        self._num_failures += 1
        if self._num_failures >= HOPELESS:
            raise error
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
        stats = replace(self._scheduler.stats(self.info.name), num_deferred=deferred, adapters=self._adapters.stats())
        return self._towers.counted(stats)

    def close(self) -> None:
        """Stop what runs beside the steps and let go of the device's memory."""
        self._closing.set()
        self._preparing.join()
        self._grammars.close()
        self._adapters.close()
        del self._runner, self.loaded
