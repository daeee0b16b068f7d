"""Builds an engine: loads the model, sizes its memory, and wires the parts that a step needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.adapters.engine_adapters import engine_adapters
from quire.engine.elastic.kv_pages import page_pool
from quire.engine.engine import Engine, EngineParts, try_admit
from quire.engine.graphs.capture import graph_rows
from quire.engine.kv_tiers.build import build_kv_tiers
from quire.engine.loading.build_module import available_bytes
from quire.engine.loading.load import LoadedModel, choose_device, load_model
from quire.engine.memory.kv_budget import check_memory_use, plan_caches, step_tokens, with_sizes
from quire.engine.memory.ledger import MemoryBudget, MemoryLedger
from quire.engine.memory.profile import activation_bytes
from quire.engine.multimodal.embeddings import MultimodalEmbeddings
from quire.engine.overlap.may_overlap import may_overlap, num_divisions
from quire.engine.parallel.executors import Launch
from quire.engine.parallel.leader import Leader, start_ranks
from quire.engine.parallel.leading_runner import runner_of
from quire.engine.parallel.one_rank import OneRank
from quire.engine.pooling.poolers import Poolers
from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.recurrent.state_slots import StateSlots
from quire.engine.runner.sizes import RunnerSizes
from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.policy import choose_policy
from quire.engine.scheduler.scheduler import Scheduler
from quire.engine.speculation.build_speculation import build_speculation
from quire.engine.speculation.hidden_tap import HiddenTap
from quire.engine.structured.constraint_tracker import ConstraintTracker
from quire.engine.structured.grammars import Grammars
from quire.hooks.call_stats import step_fault
from quire.isolation.isolated_calls import IsolatedCalls
from quire.isolation.process_pool import ProcessPool
from quire.records import Context, Deferred, Registry
from quire.settings.model_config import ModelConfig
from quire_models.loading.checkpoint import raw_config
from quire_models.loading.weights import OnProgress


def build_engine(
    config: ModelConfig,
    registry: Registry,
    budget: MemoryBudget | None = None,
    tokenizer: Callable[[], object] | None = None,
    on_progress: OnProgress = None,
    launch: Launch | None = None,
    processes: ProcessPool | None = None,
) -> Engine:
    """Load the model that `config` names and build an engine for it.

    budget: of its device's memory, None = what is free now. tokenizer: returns the tokenizer of the text side, for
    plugins; called at most once. launch: starts the other ranks of --tensor-parallel-size, None = as processes.
    processes: those that read files of adapters, None = of this engine alone.
    Raises StartupError: a setting cannot work, or the model cannot be loaded.
    """
    with ExitStack() as started:  # processes, which would run on after an error
        isolated_calls = IsolatedCalls(config.lora_load_timeout_s, pool=processes)
        started.callback(isolated_calls.close)
        ranks = start_ranks(config, registry, launch)
        started.callback(ranks.close)
        engine = _build(config, registry, budget, tokenizer, isolated_calls, on_progress, ranks)
        started.pop_all()
        return engine


def _build(
    config: ModelConfig,
    registry: Registry,
    budget: MemoryBudget | None,
    tokenizer: Callable[[], object] | None,
    isolated_calls: IsolatedCalls,
    on_progress: OnProgress,
    ranks: Leader | OneRank,
) -> Engine:
    budget = ranks.own_part(budget or MemoryLedger(available_bytes(choose_device(config.device))).budget())
    loaded = load_model(config, registry, budget.total, on_progress, ranks.shard)
    tokenizer = cache(tokenizer) if tokenizer else None
    context = partial(plugin_context, loaded, raw_config(Path(loaded.info.folder)), config, registry, tokenizer)
    # adapter runtimes take device memory for their slots, so they are built before pages are counted
    runtimes = AttachedRuntimes(
        registry, lambda plugin: replace(context(plugin), in_subprocess=isolated_calls), loaded.module
    )
    ranks.mirror(runtimes)
    adapters = engine_adapters(runtimes, config, registry, loaded, isolated_calls)

    max_tokens = step_tokens(config, loaded)
    # a drafter may have a model and pages of its own
    speculation = build_speculation(config, registry, ranks.for_drafter(loaded), context, budget)
    drafter_bytes = speculation.memory_bytes
    left = budget.without(drafter_bytes)
    caches = plan_caches(config, ranks.for_caches(loaded), lambda: activation_bytes(loaded, config, max_tokens), left)
    memory = check_memory_use(config, loaded, caches, budget, drafter_bytes)
    config = replace(config, max_num_seqs=caches.max_num_seqs)

    processors = LogitsProcessors(registry, context)
    grammars = Grammars(
        registry,
        context,
        ConstraintTracker(
            registry, loaded.info.vocab_size, loaded.eos_ids, tokenizer, config.structured_outputs_token_time_s
        ),
        config.structured_outputs_backend,
        config.structured_outputs_timeout_s,
        config.structured_outputs_cache_bytes,
    )
    divisions = num_divisions(loaded, config, speculation)
    tiers = build_kv_tiers(config, registry, loaded, adapters.registry.known)
    pool = page_pool(caches, config, loaded, tiers.listener)
    scheduler = Scheduler(
        pool,
        choose_policy(registry, config.scheduling_policy, context),
        SchedulerLimits.from_config(
            config, loaded, max_model_len=caches.max_model_len, max_tokens=max_tokens, num_divisions=divisions
        ),
        PagePool(caches.num_host_pages, config.page_size, caching=False),
        tiers.admits(partial(try_admit, grammars, adapters)),
        states=StateSlots.from_sizes(caches, config),
    )
    sizes = RunnerSizes(
        num_pages=caches.capacity,
        num_host_pages=caches.num_host_pages,
        page_size=config.page_size,
        max_tokens=max_tokens,
        max_rows=min(config.max_num_seqs, max_tokens),
        max_model_len=caches.max_model_len,
        num_state_slots=caches.num_state_slots,
        num_host_state_slots=caches.num_host_slots,
        graph_rows=graph_rows(loaded, config),
    )
    towers = MultimodalEmbeddings.from_model(loaded, registry, adapters.mapping, config)
    reads = speculation.reads_hidden
    poolers = Poolers(loaded.pooling.poolers, loaded.module.heads, loaded.dtype, config.batch_invariant)
    runner = runner_of(
        ranks,
        adapters.registry.known,
        may_overlap(loaded, config, speculation),
        divisions,
        loaded,
        sizes,
        processors,
        grammars,
        adapters.mapping,
        towers,
        poolers,
        config.batch_invariant,
        lambda error: step_fault(registry, loaded.info.name, error).message,
        HiddenTap(reads, loaded) if reads is not None else None,
        speculation.acceptance,
    )
    return Engine(
        EngineParts(
            loaded=loaded,
            info=with_sizes(loaded.info, caches, memory),
            registry=registry,
            memory=ranks.of_all(memory),
            scheduler=scheduler,
            pool=pool,
            runner=runner,
            processors=processors,
            grammars=grammars,
            adapters=adapters,
            towers=towers,
            tokenizer=tokenizer,
            speculation=speculation,
            ranks=ranks,
            tiers=tiers.attach(scheduler, runner),
        )
    )


def plugin_context(
    loaded: LoadedModel,
    config_json: Mapping[str, Any],
    config: ModelConfig,
    registry: Registry,
    tokenizer: Callable[[], object] | None,
    plugin: str,
) -> Context:
    """The context that a plugin builds its parts with."""
    info = loaded.info
    return Context(
        options=registry.options.get(plugin, {}),
        model=info.name,
        vocab_size=info.vocab_size,
        tokenizer=Deferred(tokenizer) if tokenizer else None,  # for most plugins it need not be loaded
        device=info.device,
        config=config_json,
        folder=info.folder,
        names=loaded.names,
        max_slots=config.max_loras,
        max_rank=config.max_lora_rank,
    )
