"""Computes how many pages of KV cache fit a model's memory budget, and reports when they are too few."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget, MemoryUse, check_fits
from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig
from quire_models import KVCache

log = logging.getLogger(__name__)


def page_bytes(config: ModelConfig, loaded: LoadedModel) -> int:
    """Bytes of one page over all layers."""
    return KVCache.page_bytes(loaded.decoder.kv_shapes, config.page_size, loaded.kv_dtype)


def step_tokens(config: ModelConfig, loaded: LoadedModel) -> int:
    """Maximum tokens of a step; with a non-causal model at least its longest prompt."""
    limit = config.max_num_batched_tokens
    return max(limit, loaded.info.max_model_len) if loaded.decoder.non_causal else limit


def compute_num_pages(
    config: ModelConfig, loaded: LoadedModel, activations: Callable[[], int], budget: MemoryBudget
) -> tuple[int, int]:
    """(number of pages, maximum sequence length) that fit.

    activations: measures the bytes that the largest step takes; called on a GPU if no size was configured. budget: of
    the model, on its device. Raises ConfigError if one sequence of --max-model-len does not fit. A length that was not
    configured is reduced instead, with a warning.
    """
    size, length = config.page_size, loaded.info.max_model_len
    if loaded.decoder.non_causal:  # its pages are numbers without memory: enough for any step
        return -(-step_tokens(config, loaded) // size) + config.max_num_seqs + 1, length
    per_page, per_seq = page_bytes(config, loaded), -(-length // size)
    if config.num_pages is not None:
        num_pages = config.num_pages
    elif config.kv_cache_memory_bytes is not None:
        num_pages = config.kv_cache_memory_bytes // per_page
    else:
        free = _free_for_pages(config, loaded, activations, budget, per_seq * per_page)
        num_pages = min(max(free, 0) // per_page, config.max_num_seqs * per_seq)
    if num_pages >= per_seq:
        return num_pages, length
    slots = num_pages * size
    have, need = f"{num_pages * per_page / 2**20:.1f} MiB", f"{per_seq * per_page / 2**20:.1f} MiB"
    advice = "raise --kv-cache-memory-bytes, --num-pages or (on a GPU) --gpu-memory-utilization"
    if num_pages < 1 or config.max_model_len is not None:
        raise ConfigError(
            f"The KV cache has {num_pages} pages of {size} tokens ({have}), but one sequence of "
            f"--max-model-len {length} needs {per_seq} ({need}): {advice}, or lower --max-model-len to {slots}."
        )
    log.warning(
        "The KV cache holds %d tokens (%s), the model's context of %d needs %s: no sequence can be longer than "
        "%d tokens. For more, %s.",
        *(slots, have, length, need, slots, advice),
    )
    return num_pages, slots


def _free_for_pages(
    config: ModelConfig, loaded: LoadedModel, activations: Callable[[], int], budget: MemoryBudget, one_seq: int
) -> int:
    """Bytes left for pages, if neither pages nor bytes are configured. one_seq: bytes of the longest sequence."""
    if loaded.device.type == "cpu":
        wanted = max(budget.kv_cache, min(one_seq, budget.max_kv_cache))
        return min(wanted, (budget.total - loaded.weight_bytes) // 2)
    step = activations() + (config.encoder_cache_bytes if loaded.module.tower is not None else 0)
    free, total = torch.cuda.mem_get_info(loaded.device)
    unused = int(config.gpu_memory_utilization * total) - (total - free) - step
    return min(unused, budget.total - loaded.weight_bytes - step)


def check_memory_use(
    config: ModelConfig, loaded: LoadedModel, num_pages: int, num_host_pages: int, budget: MemoryBudget
) -> MemoryUse:
    """What the model takes of its device's memory. Raises ConfigError if that is more than its budget.

    Pages in host memory count if the model runs on the CPU.
    """
    per_page, on_cpu = page_bytes(config, loaded), loaded.device.type == "cpu"
    use = MemoryUse(
        weights=loaded.weight_bytes,
        kv_cache=0 if loaded.decoder.non_causal else num_pages * per_page,
        swap=num_host_pages * per_page if on_cpu else 0,
        encoder_cache=config.encoder_cache_bytes if loaded.module.tower is not None else 0,
    )
    check_fits(config.name, use, budget.total)
    return use


def compute_num_host_pages(config: ModelConfig, loaded: LoadedModel, num_pages: int) -> int:
    """Pages in host memory for swapped sequences. Raises ConfigError if --swap-space is less than one page."""
    if not config.swap_space or config.preemption == "recompute" or loaded.decoder.non_causal:
        return 0
    per_page = page_bytes(config, loaded)
    num_pages_of_space = int(config.swap_space * 2**30) // per_page
    if num_pages_of_space < 1:
        raise ConfigError(f"--swap-space {config.swap_space} GiB is less than one page ({per_page / 2**20:.2f} MiB).")
    return min(num_pages_of_space, config.max_num_seqs * num_pages)
