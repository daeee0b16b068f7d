"""Divides the memory of a model's caches between KV pages, the state of running sequences, and checkpoints of state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from quire.engine.loading.load import LoadedModel
from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig
from quire_models import StateCache

log = logging.getLogger(__name__)

CHECKPOINT_SHARE = 0.25
"""Share of the memory of both caches for checkpoints by default."""
SEQ_SHARE = 0.5
"""Maximum share for the state of running sequences, where KV pages need memory too."""
CHECKPOINTS_PER_SEQ = 8
"""Maximum checkpoints by default, for each sequence that may run."""
MAX_KEPT = 16
"""Slots for states before drafts, beside those of a configured number of checkpoints; one for each drafted sequence."""
MIN_INTERVAL, MAX_INTERVAL = 32, 256
"""Pages between two checkpoints by default: chunks end there, and short chunks are slow."""


@dataclass(frozen=True, kw_only=True)
class CacheSizes:
    """KV pages and state slots, on the device and in host memory for swapped sequences.

    max_num_seqs: sequences that may run, each of which has a slot. num_state_slots: theirs and those of checkpoints; 0
    for models without state, like the other numbers of state. checkpoint_interval: pages between two checkpoints.
    max_pages: see `capacity`.
    """

    num_pages: int
    max_model_len: int
    max_num_seqs: int
    num_checkpoints: int = 0
    num_state_slots: int = 0
    num_host_pages: int = 0
    num_host_slots: int = 0
    checkpoint_interval: int = 0
    max_pages: int = 0

    @property
    def capacity(self) -> int:
        """Pages that have addresses: more than `num_pages` if the model may get memory of other models."""
        return max(self.num_pages, self.max_pages)


@dataclass(frozen=True)
class SlotNumbers:
    """State slots of running sequences and of checkpoints. has_state: off, there are none of either."""

    num_seqs: int
    num_checkpoints: int
    has_state: bool = True

    @property
    def total(self) -> int:
        return self.num_seqs + self.num_checkpoints if self.has_state else 0


def slot_bytes(loaded: LoadedModel) -> int:
    """Bytes of the state of one sequence over all layers; 0 for models without state."""
    return StateCache.slot_bytes(loaded.decoder.state_shapes, loaded.dtype)


def checkpoint_interval(config: ModelConfig, per_page: int, per_slot: int) -> int:
    """Pages between two checkpoints: by default about as many as take the memory of one checkpoint."""
    if config.state_checkpoint_interval is not None:
        return config.state_checkpoint_interval or 1 << 30  # 0: none at intervals
    return max(MIN_INTERVAL, min(-(-per_slot // per_page) if per_page else MAX_INTERVAL, MAX_INTERVAL))


def plan_slots(config: ModelConfig, per_slot: int, total: int | None, one_seq: int) -> SlotNumbers:
    """State slots of `per_slot` bytes in `total` bytes, of which the pages of one whole sequence take `one_seq`.

    total: None if the number of pages was configured instead of bytes; then every sequence and as many checkpoints
    get slots. With speculative decoding, slots of checkpoints also keep states during a step: a configured number gets
    more slots for these, if they fit. Raises ConfigError if no sequence, or not the configured number of checkpoints
    fits.
    """
    wanted = config.num_state_checkpoints if config.enable_prefix_caching else 0
    if not per_slot:
        return SlotNumbers(config.max_num_seqs, 0, has_state=False)
    num_kept = min(config.max_num_seqs, MAX_KEPT) if config.speculation else 0
    if total is None:
        return SlotNumbers(config.max_num_seqs, config.max_num_seqs if wanted is None else wanted + num_kept)
    fitting = max(0, total - one_seq) // per_slot or total // per_slot
    if fitting < 1 + (wanted or 0):
        also, advice = (f" and --num-state-checkpoints {wanted}", " or lower it") if wanted else ("", "")
        raise ConfigError(
            f"The state of one sequence takes {per_slot / 2**20:.1f} MiB, and --kv-cache-memory-bytes has room for "
            f"{fitting}, but one sequence{also} must fit: raise --kv-cache-memory-bytes{advice}."
        )
    share = SEQ_SHARE if one_seq else 1 - CHECKPOINT_SHARE
    num_seqs = max(1, min(config.max_num_seqs, int(share * total) // per_slot, fitting - (wanted or 0)))
    default = min(int(CHECKPOINT_SHARE * total) // per_slot, CHECKPOINTS_PER_SEQ * config.max_num_seqs)
    if num_seqs < config.max_num_seqs:
        log.warning(
            "The state of a sequence takes %.1f MiB: at most %d sequences run at once, not --max-num-seqs %d. "
            "For more, raise --kv-cache-memory-bytes.",
            *(per_slot / 2**20, num_seqs, config.max_num_seqs),
        )
    return SlotNumbers(num_seqs, min(default if wanted is None else wanted + num_kept, fitting - num_seqs))


def plan_host_memory(
    config: ModelConfig, per_page: int, per_slot: int, num_pages: int, num_seqs: int
) -> tuple[int, int]:
    """(pages, state slots) in host memory for swapped sequences.

    Raises ConfigError if --swap-space is less than a page and the state of a sequence.
    """
    if not config.swap_space or config.preemption == "recompute":
        return 0, 0
    space = int(config.swap_space * 2**30)
    if space < per_page + per_slot:
        unit = f"one page ({per_page / 2**20:.2f} MiB)"
        state = f" and the state of a sequence ({per_slot / 2**20:.2f} MiB)" if per_slot else ""
        raise ConfigError(f"--swap-space {config.swap_space} GiB is less than {unit}{state}.")
    share = space // 2 if per_page else space
    num_slots = min(num_seqs, max(1, share // per_slot)) if per_slot else 0
    most = config.max_num_seqs * num_pages if per_page else num_pages
    return min((space - num_slots * per_slot) // per_page, most) if per_page else most, num_slots
