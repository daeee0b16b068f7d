"""How many pages fit, and what to say when they are too few.

It knows bytes and lengths; running the model for a measurement is its caller's affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from quire.config import ModelConfig
from quire.engine.load import Loaded, available_bytes
from quire.errors import ConfigError
from quire_models import KvPool

log = logging.getLogger(__name__)

CPU_SHARE = 0.25
"""Share of the free memory that the KV cache takes on a CPU, unless it is told."""
CPU_MOST = 4 << 30


def page_bytes(loaded: Loaded, page_size: int) -> int:
    """Bytes of one page over all blocks."""
    return KvPool.page_bytes(loaded.decoder.kv_shapes, page_size, loaded.kv_dtype)


def kv_bytes(config: ModelConfig, loaded: Loaded, peak: Callable[[], int], budget: int | None) -> int:
    """Bytes for pages, where neither pages nor bytes were given.

    peak: most bytes the device holds, of this process, while the largest step runs (cuda only; measured when
    called). budget: bytes of device memory this model may take in all, None = its share of the whole.
    """
    if loaded.device.type == "cpu":
        wish = min(int(CPU_SHARE * available_bytes(loaded.device)), CPU_MOST)
        return wish if budget is None else min(wish, budget)
    total = torch.cuda.get_device_properties(loaded.device).total_memory
    most = int(config.gpu_memory_utilization * total)
    used = peak()
    if budget is not None:
        most = min(most, torch.cuda.memory_allocated(loaded.device) + budget)
    return most - used


def fit(config: ModelConfig, loaded: Loaded, peak: Callable[[], int], budget: int | None = None) -> tuple[int, int]:
    """(number of pages, longest seq) that this machine can serve.

    Raises ConfigError, with the numbers, when one seq of --max-model-len does not fit; a length that was not
    asked for is reduced instead, with a warning.
    """
    size, length = config.page_size, loaded.info.max_model_len
    per_page = page_bytes(loaded, size)
    per_seq = -(-length // size)
    if config.num_pages is not None:
        num_pages = config.num_pages
    elif config.kv_cache_memory_bytes is not None:
        num_pages = config.kv_cache_memory_bytes // per_page
    else:
        num_pages = min(kv_bytes(config, loaded, peak, budget) // per_page, config.max_num_seqs * per_seq)
    if num_pages >= per_seq:
        return num_pages, length
    have, need = f"{max(num_pages, 0) * per_page / 2**20:.1f} MiB", f"{per_seq * per_page / 2**20:.1f} MiB"
    advice = "Raise --kv-cache-memory-bytes, --num-pages or (on a GPU) --gpu-memory-utilization"
    if num_pages < 1 or config.max_model_len is not None:
        raise ConfigError(
            f"The KV cache has room for {max(num_pages, 0)} pages of {size} tokens ({have}), but one seq of "
            f"--max-model-len {length} needs {per_seq} ({need}). {advice}, or lower --max-model-len to at most "
            f"{max(num_pages, 0) * size}."
        )
    log.warning(
        "The KV cache has room for %d tokens (%s), the model's context of %d needs %s: the longest seq is "
        "limited to %d tokens. %s for more.",
        num_pages * size,
        have,
        length,
        need,
        num_pages * size,
        advice,
    )
    return num_pages, num_pages * size
