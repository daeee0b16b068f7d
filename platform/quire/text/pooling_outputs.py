"""What comes out of prompts that are pooled. Names are those of vLLM's outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire.errors import error_told
from quire.pooling import Pooled
from quire.types import Delta, Request

if TYPE_CHECKING:
    from torch import Tensor

O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True)
class PoolingOutput:
    """data: float32, [size] or [tokens, size]."""

    data: Tensor


@dataclass(frozen=True)
class EmbeddingOutput:
    """A text as a vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its length."""
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    """probs: of each class, in the order of the model's labels."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many there are."""
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    """How well two texts go together."""

    score: float


@dataclass(kw_only=True)
class PoolingRequestOutput(Generic[O]):
    """A prompt and what was made of it."""

    request_id: str
    outputs: O
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


class PooledCollector:
    """Takes in the one delta of a request; as `quire.text.outputs.Collector` does for text."""

    aborts: Collection[tuple[str, int]] = ()

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = False
        self._pooled: Pooled | None = None
        self._num_cached = 0

    def take_aborts(self) -> Collection[tuple[str, int]]:
        """None, ever."""
        return ()

    def push(self, delta: Delta) -> None:
        """Take in the delta; raise the error it carries, if any."""
        if delta.error is not None:
            raise error_told(delta.error)
        self._pooled, self._num_cached = delta.pooled, delta.num_cached_tokens or 0
        self.done = delta.finish_reason is not None

    def result(self) -> PoolingRequestOutput[Pooled]:
        """What has come; there must be something."""
        assert self._pooled is not None, "it is done"
        return PoolingRequestOutput(
            request_id=self.request.id,
            outputs=self._pooled,
            prompt_token_ids=list(self.request.prompt.token_ids),
            num_cached_tokens=self._num_cached,
        )


def with_outputs(output: PoolingRequestOutput[Any], outputs: O) -> PoolingRequestOutput[O]:
    """The same prompt with what was made of it in another form."""
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=outputs,
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
    )


def as_tensor(pooled: Pooled) -> PoolingOutput:
    """With numbers that may be written to."""
    import torch

    return PoolingOutput(torch.from_numpy(pooled.numbers().copy()))
