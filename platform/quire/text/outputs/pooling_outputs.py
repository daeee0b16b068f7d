"""Outputs of pooling requests, with the names of vLLM's outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire.errors import from_wire
from quire.params.pooling import PoolingResult
from quire.types import Request, SeqDelta

if TYPE_CHECKING:
    from torch import Tensor

O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True)
class PoolingOutput:
    """A pooled tensor. data: float32, [size] or [tokens, size]."""

    data: Tensor


@dataclass(frozen=True)
class EmbeddingOutput:
    """The embedding vector of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    """Class probabilities of a prompt. probs: in the order of the model's labels."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    """Similarity score of two texts."""

    score: float


@dataclass(kw_only=True)
class PoolingRequestOutput(Generic[O]):
    """A prompt and its pooled output."""

    request_id: str
    outputs: O
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


class PooledCollector:
    """Collects the single delta of a pooling request, with the interface of `quire.text.outputs.outputs.Collector`."""

    aborts: Collection[tuple[str, int]] = ()

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = False
        self._pooled: PoolingResult | None = None
        self._num_cached = 0

    def take_aborts(self) -> Collection[tuple[str, int]]:
        """(): a pooling request has no stop strings."""
        return ()

    def push(self, delta: SeqDelta) -> None:
        """Add the delta. Raises the error that it carries, if any."""
        if delta.error is not None:
            raise from_wire(delta.error)
        self._pooled, self._num_cached = delta.pooled, delta.num_cached_tokens or 0
        self.done = delta.finish_reason is not None

    def result(self) -> PoolingRequestOutput[PoolingResult]:
        """The output. The request must be done."""
        assert self._pooled is not None, "the request is not done"
        return PoolingRequestOutput(
            request_id=self.request.id,
            outputs=self._pooled,
            prompt_token_ids=list(self.request.prompt.token_ids),
            num_cached_tokens=self._num_cached,
        )


def with_outputs(output: PoolingRequestOutput[Any], outputs: O) -> PoolingRequestOutput[O]:
    """A copy of a request output with other `outputs`."""
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=outputs,
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
    )


def as_tensor(pooled: PoolingResult) -> PoolingOutput:
    """The result as a writable tensor."""
    import torch

    return PoolingOutput(torch.from_numpy(pooled.numbers().copy()))
