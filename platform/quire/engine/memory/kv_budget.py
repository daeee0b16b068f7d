"""Computes how many KV pages and state slots fit a model's memory budget, and reports when they are too few."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from dataclasses import replace

import torch

from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MAX_KV_BYTES, MemoryBudget, MemoryUse, check_fits
from quire.engine.memory.state_budget import (
    CacheSizes,
    checkpoint_interval,
    plan_host_memory,
    plan_slots,
    slot_bytes,
)
from quire.errors import ConfigError, NoMemory
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo
from quire_models import KVCache

log = logging.getLogger(__name__)

MAX_FREE_PAGES = 1 << 17
"""Pages without memory, of models that keep only state, unless one sequence needs more."""


def page_bytes(config: ModelConfig, loaded: LoadedModel) -> int:
    """Bytes of one page over all layers."""
    return KVCache.page_bytes(loaded.decoder.kv_shapes, config.page_size, loaded.kv_dtype)


def step_tokens(config: ModelConfig, loaded: LoadedModel) -> int:
    """Maximum tokens of a step; with a non-causal model at least its longest prompt."""
    limit = config.max_num_batched_tokens
    return max(limit, loaded.info.max_model_len) if loaded.decoder.non_causal else limit


def plan_caches(
    config: ModelConfig, loaded: LoadedModel, activations: Callable[[], int], budget: MemoryBudget
) -> CacheSizes:
    """The pages and state slots that fit, planned from one budget.

    activations: measures the bytes that the largest step takes; called on a GPU if no size was configured. budget: of
    the model, on its device. Raises ConfigError if one sequence of --max-model-len does not fit. A length that was not
    configured is reduced instead, with a warning; so is the number of sequences whose state fits.
    """
    size, length = config.page_size, loaded.info.max_model_len
    if loaded.decoder.non_causal:  # its pages are numbers without memory: enough for any step
        num_pages = -(-step_tokens(config, loaded) // size) + config.max_num_seqs + 1
        return CacheSizes(num_pages=num_pages, max_model_len=length, max_num_seqs=config.max_num_seqs)
    per_page, per_seq, per_slot = page_bytes(config, loaded), -(-length // size), slot_bytes(loaded)
    total = None if config.num_pages is not None else config.kv_cache_memory_bytes
    if config.num_pages is None and total is None:
        total = max(0, _free_for_pages(config, loaded, activations, budget, per_seq * per_page + per_slot))
    slots = plan_slots(config, per_slot, total, per_seq * per_page)
    if config.num_pages is not None:
        num_pages = config.num_pages
    elif not per_page:  # pages are numbers, for positions and for hashes of the prefix cache
        num_pages = min(slots.num_seqs * per_seq, max(per_seq, MAX_FREE_PAGES))
    else:
        assert total is not None
        num_pages = (total - slots.total * per_slot) // per_page
        if config.kv_cache_memory_bytes is None:
            num_pages = min(num_pages, config.max_num_seqs * per_seq)
    length = _check_length(config, num_pages, per_seq, per_page, length)
    host = plan_host_memory(config, per_page, per_slot, num_pages, slots.num_seqs)
    return CacheSizes(
        num_pages=num_pages,
        max_model_len=length,
        max_num_seqs=slots.num_seqs,
        num_checkpoints=slots.num_checkpoints,
        num_state_slots=slots.total,
        num_host_pages=host[0],
        num_host_slots=host[1],
        checkpoint_interval=checkpoint_interval(config, per_page, per_slot),
        max_pages=_max_pages(config, loaded, per_page, per_seq),
    )


def _max_pages(config: ModelConfig, loaded: LoadedModel, per_page: int, per_seq: int) -> int:
    """Pages that a model on a CPU may get when other models do not need theirs; 0 if their number is fixed."""
    is_sized = config.num_pages is not None or config.kv_cache_memory_bytes is not None
    if is_sized or loaded.device.type != "cpu" or not per_page or config.num_ranks > 1 or config.speculation:
        return 0
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return 0  # addresses are limited too
    return min(MAX_KV_BYTES // per_page, config.max_num_seqs * per_seq)


def _check_length(config: ModelConfig, num_pages: int, per_seq: int, per_page: int, length: int) -> int:
    """The maximum length of a sequence with so many pages, of which one of `length` tokens needs `per_seq`."""
    if num_pages >= per_seq:
        return length
    slots = num_pages * config.page_size
    have, need = f"{num_pages * per_page / 2**20:.1f} MiB", f"{per_seq * per_page / 2**20:.1f} MiB"
    advice = "raise --kv-cache-memory-bytes, --num-pages or (on a GPU) --gpu-memory-utilization"
    if num_pages < 1 or config.max_model_len is not None:
        is_chosen = config.kv_cache_memory_bytes is not None or config.num_pages is not None
        raise (ConfigError if is_chosen else NoMemory)(
            f"The KV cache has {num_pages} pages of {config.page_size} tokens ({have}), but one sequence of "
            f"--max-model-len {length} needs {per_seq} ({need}): {advice}, or lower --max-model-len to {slots}."
        )
    log.warning(
        "The KV cache holds %d tokens (%s), the model's context of %d needs %s: no sequence can be longer than "
        "%d tokens. For more, %s.",
        *(slots, have, length, need, slots, advice),
    )
    return slots


def _free_for_pages(
    config: ModelConfig, loaded: LoadedModel, activations: Callable[[], int], budget: MemoryBudget, one_seq: int
) -> int:
    """Bytes left for pages, if neither pages nor bytes are configured. one_seq: bytes of the longest sequence."""
    if loaded.device.type == "cpu":
        wanted = max(budget.kv_cache, min(one_seq, budget.max_kv_cache))
        return min(wanted, int((budget.total - loaded.weight_bytes) * budget.kv_part))
    step = activations() + (config.encoder_cache_bytes if loaded.module.tower is not None else 0)
    free, total = torch.cuda.mem_get_info(loaded.device)
    unused = int(config.gpu_memory_utilization * total) - (total - free) - step
    wanted = max(budget.kv_cache, min(one_seq, budget.max_kv_cache))
    return min(unused, wanted, budget.total - loaded.weight_bytes - step)


def check_memory_use(
    config: ModelConfig, loaded: LoadedModel, sizes: CacheSizes, budget: MemoryBudget, drafter_bytes: int = 0
) -> MemoryUse:
    """What the model takes of its device's memory. Raises NoMemory if that is more than its budget.

    Pages and slots in host memory count if the model runs on the CPU.
    """
    per_page, per_slot, on_cpu = page_bytes(config, loaded), slot_bytes(loaded), loaded.device.type == "cpu"
    use = MemoryUse(
        weights=loaded.weight_bytes,
        kv_cache=0 if loaded.decoder.non_causal else sizes.num_pages * per_page,
        state=sizes.num_state_slots * per_slot,
        swap=sizes.num_host_pages * per_page + sizes.num_host_slots * per_slot if on_cpu else 0,
        encoder_cache=config.encoder_cache_bytes if loaded.module.tower is not None else 0,
        drafter=drafter_bytes,
    )
    check_fits(config.name, use, budget.total)
    return use


def with_sizes(info: ModelInfo, sizes: CacheSizes, use: MemoryUse) -> ModelInfo:
    """The description of a model with what it takes of its device's memory."""
    return replace(
        info,
        num_pages=sizes.num_pages,
        max_model_len=sizes.max_model_len,
        weight_bytes=use.weights,
        kv_cache_bytes=use.kv_cache,
        state_bytes=use.state,
        num_state_slots=sizes.num_state_slots,
        num_state_checkpoints=sizes.num_checkpoints,
        memory_bytes=use.total,
    )
