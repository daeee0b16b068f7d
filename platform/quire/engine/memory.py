"""How many pages fit, and what to say when they are too few.

It knows bytes and lengths; running the model for a measurement is its caller's affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from quire.config import ModelConfig
from quire.engine.load import Loaded
from quire.engine.memory_ledger import MemoryBudget, MemoryUse, check_fits
from quire.errors import ConfigError
from quire_models import KvPool

log = logging.getLogger(__name__)


def page_bytes(config: ModelConfig, loaded: Loaded) -> int:
    """Bytes of one page over all blocks."""
    return KvPool.page_bytes(loaded.decoder.kv_shapes, config.page_size, loaded.kv_dtype)


def step_tokens(config: ModelConfig, loaded: Loaded) -> int:
    """Most tokens of a step; a prompt that must be computed whole has room in it, however long."""
    most = config.max_num_batched_tokens
    return max(most, loaded.info.max_model_len) if loaded.decoder.whole_prompts else most


def fit(config: ModelConfig, loaded: Loaded, activations: Callable[[], int], budget: MemoryBudget) -> tuple[int, int]:
    """(number of pages, longest seq) that this machine can serve.

    activations: measures the bytes that the largest step takes (called on a GPU, when nothing was given); rows of media
    are kept beside them.
    budget: of the model, on its device.
    Raises ConfigError, with the numbers, when one seq of --max-model-len does not fit; a length that was not
    asked for is reduced instead, with a warning.
    """
    size, length = config.page_size, loaded.info.max_model_len
    if loaded.decoder.whole_prompts:  # its pages are numbers without memory: enough for whatever a step computes
        return -(-step_tokens(config, loaded) // size) + config.max_num_seqs + 1, length
    per_page, per_seq = page_bytes(config, loaded), -(-length // size)
    if config.num_pages is not None:
        num_pages = config.num_pages
    elif config.kv_cache_memory_bytes is not None:
        num_pages = config.kv_cache_memory_bytes // per_page
    else:
        room = _room(config, loaded, activations, budget, per_seq * per_page)
        num_pages = min(max(room, 0) // per_page, config.max_num_seqs * per_seq)
    if num_pages >= per_seq:
        return num_pages, length
    slots = num_pages * size
    have, need = f"{num_pages * per_page / 2**20:.1f} MiB", f"{per_seq * per_page / 2**20:.1f} MiB"
    advice = "raise --kv-cache-memory-bytes, --num-pages or (on a GPU) --gpu-memory-utilization"
    if num_pages < 1 or config.max_model_len is not None:
        raise ConfigError(
            f"The KV cache has room for {num_pages} pages of {size} tokens ({have}), but one seq of "
            f"--max-model-len {length} needs {per_seq} ({need}): {advice}, or lower --max-model-len to {slots}."
        )
    log.warning(
        "The KV cache has room for %d tokens (%s), the model's context of %d needs %s: no seq can be longer than "
        "%d tokens. For more, %s.",
        *(slots, have, length, need, slots, advice),
    )
    return num_pages, slots


def _room(
    config: ModelConfig, loaded: Loaded, activations: Callable[[], int], budget: MemoryBudget, one_seq: int
) -> int:
    """Bytes left for pages, where neither pages nor bytes were asked for. one_seq: bytes of the longest sequence."""
    if loaded.device.type == "cpu":
        wanted = max(budget.kv_cache, min(one_seq, budget.kv_cache_at_most))
        return min(wanted, (budget.total - loaded.weight_bytes) // 2)
    step = activations() + (config.encoder_cache_bytes if loaded.module.tower is not None else 0)
    free, total = torch.cuda.mem_get_info(loaded.device)
    room = int(config.gpu_memory_utilization * total) - (total - free) - step
    return min(room, budget.total - loaded.weight_bytes - step)


def reserve(
    config: ModelConfig, loaded: Loaded, num_pages: int, num_host_pages: int, budget: MemoryBudget
) -> MemoryUse:
    """What the model takes of its device's memory; ConfigError if that is more than its budget.

    Pages in host memory count where the model runs there.
    """
    per_page, on_cpu = page_bytes(config, loaded), loaded.device.type == "cpu"
    use = MemoryUse(
        weights=loaded.weight_bytes,
        kv_cache=0 if loaded.decoder.whole_prompts else num_pages * per_page,
        swap=num_host_pages * per_page if on_cpu else 0,
        encoder_cache=config.encoder_cache_bytes if loaded.module.tower is not None else 0,
    )
    check_fits(config.name, use, budget.total)
    return use


def host_pages(config: ModelConfig, loaded: Loaded, num_pages: int) -> int:
    """Pages in host memory for seqs that are swapped out. Raises ConfigError if the space is less than one."""
    if not config.swap_space or config.preemption == "recompute" or loaded.decoder.whole_prompts:
        return 0
    per_page = page_bytes(config, loaded)
    most = int(config.swap_space * 2**30) // per_page
    if most < 1:
        raise ConfigError(f"--swap-space {config.swap_space} GiB is less than one page ({per_page / 2**20:.2f} MiB).")
    return min(most, config.max_num_seqs * num_pages)
