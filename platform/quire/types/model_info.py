"""The description of a loaded model that the engine process sends to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.types.encoder_input import EncoderInputInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """A loaded model.

    tasks: those that it can do, of "generate", "transcribe", "translate" and `quire.params.pooling.POOLING_TASKS`.
    dimensions: how many of the `embedding_size` numbers a request may ask for: None = no fewer, () = any number, else
    one of these. labels: names of the classes, in order. token_types: whether tokens of a pair of texts have types.
    position_axes: axes of the rotary positions of media. encoder_input: the item that prompts begin with, if any.
    max_logprobs: log-probabilities per position that a request may ask for, -1 = any number. operations: the
    implementation of most operations, such as avx2 or torch. fallback: the plugin whose fallback builds the model, ""
    if its architecture is a plugin's own. weight_bytes: an upper bound. kv_cache_bytes: 0 = the model needs none.
    state_bytes: of all slots for the state of recurrent blocks, of which num_state_checkpoints are for checkpoints; 0 =
    it keeps none. memory_bytes: all that it reserves of its device's memory, caches for media and swap space included.
    """

    name: str
    aliases: tuple[str, ...]
    root: str
    folder: str
    architecture: str
    dtype: str
    device: str
    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_pages: int
    page_size: int
    num_parameters: int
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    modalities: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("generate",)
    embedding_size: int | None = None
    dimensions: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    token_types: bool = False
    position_axes: int = 1
    encoder_input: EncoderInputInfo | None = None
    max_logprobs: int = 20
    operations: str = ""
    fallback: str = ""
    weight_bytes: int = 0
    kv_cache_bytes: int = 0
    state_bytes: int = 0
    num_state_slots: int = 0
    num_state_checkpoints: int = 0
    memory_bytes: int = 0

    @property
    def description(self) -> tuple[str, ...]:
        """Size, data type, device, implementation of the operations, context length and caches, in words."""
        operations = f" with {self.operations} operations" if self.operations else ""
        cache = f"KV cache {bytes_in_words(self.kv_cache_bytes)} for {self.num_pages * self.page_size} tokens"
        return (
            f"{_count(self.num_parameters)} parameters",
            f"{self.dtype} on {self.device}{operations}",
            f"context {self.max_model_len} tokens",
            cache if self.kv_cache_bytes else "no KV cache",
            *([self._state] if self.num_state_slots else []),
        )

    @property
    def _state(self) -> str:
        num_seqs = self.num_state_slots - self.num_state_checkpoints
        per_slot = bytes_in_words(self.state_bytes // self.num_state_slots)
        return f"state {per_slot} for each of {num_seqs} sequences and {self.num_state_checkpoints} checkpoints"


def bytes_in_words(count: int) -> str:
    """A number of bytes with its unit: 1536 → 1.5 KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.1f} KiB"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
