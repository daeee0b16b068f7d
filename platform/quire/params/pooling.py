"""Parameters of pooling requests, whose result is a vector, or one per token, instead of text.

Names and rules are those of vLLM's `PoolingParams`. A wrong value raises `BadRequest` (a ValueError) that names the
field. `quire.types.request_validation` checks what depends on the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from quire.errors import BadRequest

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
"""Results of poolers: an embedding or class scores, of the whole prompt or of each token."""

MAX_POOLING_INPUTS = 1 << 16
"""Upper limit of --max-pooling-inputs: texts, documents or pairs in one request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolingParams:
    """How a prompt is pooled.

    task: one of POOLING_TASKS. dimensions: how many leading numbers of an embedding to return, normalized after the cut
    (matryoshka). use_activation: whether to normalize embeddings and apply the activation to scores; None = the model's
    default. reads_cache: whether cached pages may serve the beginning of the prompt; set by the engine.
    """

    task: str = "embed"
    dimensions: int | None = None
    use_activation: bool | None = None
    reads_cache: bool = True

    def __post_init__(self) -> None:
        if self.task not in POOLING_TASKS:
            raise BadRequest(f"`task` must be one of {', '.join(POOLING_TASKS)}; got {self.task!r:.40}.", "task")
        size = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadRequest(f"`dimensions` must be an integer of at least 1, got {size!r:.40}.", "dimensions")
        if self.use_activation is not None and not isinstance(self.use_activation, bool):
            raise BadRequest(
                f"`use_activation` must be true, false or null, got {self.use_activation!r:.40}.", "use_activation"
            )

    @property
    def num_seqs(self) -> int:
        return 1

    @property
    def max_tokens(self) -> int:
        return 0

    @property
    def ignore_eos(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class PoolingResult:
    """The result of a pooler: float32 numbers, little-endian, of shape (size,) or (tokens, size)."""

    shape: tuple[int, ...]
    data: bytes

    def numbers(self) -> NDArray[float32]:
        """A view of `data` as an array."""
        import numpy as np

        return np.frombuffer(self.data, "<f4").reshape(self.shape)

    @classmethod
    def from_array(cls, numbers: NDArray[float32]) -> PoolingResult:
        return cls(tuple(map(int, numbers.shape)), numbers.astype("<f4", copy=False).tobytes())

    def __post_init__(self) -> None:
        assert len(self.data) == 4 * prod(self.shape), "bytes and shape agree"


def tasks_listed(tasks: Sequence[str]) -> str:
    """The tasks of a model as text for error messages."""
    return ", ".join(tasks) or "nothing"
