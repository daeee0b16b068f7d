"""The least cost of a model's steps, in bytes to read and floating-point operations.

Only unavoidable work counts: weights once per step, keys and values of the positions before a chunk, the head for rows
that sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quire_bench.workload import BenchRequest

if TYPE_CHECKING:
    from quire.engine.loading.load import LoadedModel
    from quire_models.model_part import ModelPart
    from quire_models.modules.blocks import DecoderModel
    from quire_models.modules.projection import Projection
    from quire_models.parts.moe import Expert


class TokenSpan(NamedTuple):
    """Positions start … start + length - 1 of one seq, computed in one step; `samples`: the last one samples."""

    start: int
    length: int
    samples: bool


class OpCost(NamedTuple):
    """Least cost of one step: floating-point operations and bytes to read."""

    flops: float
    bytes: float


class Heads(NamedTuple):
    """The attention of one block. window: visible positions of a token, None = all up to its own."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    def seen(self, span: TokenSpan) -> int:
        """Pairs of a token of the span and a position visible to it."""
        first, last = span.start + 1, span.start + span.length  # positions visible to the first and the last token
        if self.window is None or last <= self.window:
            return (first + last) * span.length // 2
        whole = max(self.window - first, 0)  # tokens with fewer visible positions than the window
        return (first + first + whole - 1) * whole // 2 + (span.length - whole) * self.window

    def earlier(self, span: TokenSpan) -> int:
        """Positions before the span whose keys and values are read."""
        return span.start if self.window is None else min(span.start, self.window - 1)


class ExpertGeometry(NamedTuple):
    """A mixture of experts: each token uses `chosen` of `total` experts with this many elements each."""

    total: int
    chosen: int
    elements: int

    def used(self, tokens: int) -> float:
        """Expected number of distinct experts that a number of tokens uses, if all experts are equally likely."""
        return self.total * (1 - (1 - self.chosen / self.total) ** tokens)


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model that determine the cost of a step.

    body: elements of the matrices that every token is multiplied by. head: those for rows that sample. heads, experts:
    per block, with the number of blocks that have them. weight_bytes (of body and head, as stored), expert_bytes,
    kv_bytes: per element, with its share of scales.
    """

    body: int
    head: int
    heads: tuple[tuple[Heads, int], ...]
    experts: tuple[tuple[ExpertGeometry, int], ...]
    weight_bytes: float
    expert_bytes: int
    kv_bytes: float

    @classmethod
    def from_model(cls, loaded: LoadedModel) -> Geometry:
        """Reads the geometry from a loaded model."""
        from quire_models.step.kv_cache import KVCache

        body, head, experts = _matrices(loaded.module)
        shapes = loaded.decoder.kv_shapes
        elements = sum(shape.kv_heads * (shape.head_dim + shape.value_width) for shape in shapes)
        return cls(
            body,
            head,
            tuple(Counter(_heads(loaded.decoder)).items()),
            tuple(Counter(experts).items()),
            _read_bytes(loaded) / (body + head),
            loaded.dtype.itemsize,
            KVCache.page_bytes(shapes, 1, loaded.kv_dtype) / max(elements, 1),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one position in all blocks."""
        return round(self.kv_bytes * sum(2 * h.kv_heads * h.head_dim * blocks for h, blocks in self.heads))

    def cost(self, spans: Sequence[TokenSpan]) -> OpCost:
        """Least cost of a step with these spans."""
        tokens, rows = sum(span.length for span in spans), sum(span.samples for span in spans)
        flops = 2.0 * self.body * tokens + 2.0 * self.head * rows
        moved = self.weight_bytes * ((self.body if tokens else 0) + (self.head if rows else 0))
        for experts, blocks in self.experts:
            flops += 2.0 * experts.chosen * experts.elements * tokens * blocks
            moved += experts.used(tokens) * experts.elements * blocks * self.expert_bytes
        kv_elements = 0.0
        for heads, blocks in self.heads:
            flops += 4.0 * heads.heads * heads.head_dim * blocks * sum(map(heads.seen, spans))
            kv_elements += 2.0 * heads.kv_heads * heads.head_dim * blocks * sum(map(heads.earlier, spans))
        return OpCost(flops, moved + kv_elements * self.kv_bytes)


def _projections(module: DecoderModel) -> tuple[list[Projection], list[Projection]]:
    """Projections for every token, and those of the head."""
    from quire_models.modules.projection import Projection

    body = [*(m for m in module.blocks.modules() if isinstance(m, Projection)), module.embed_in]
    head = [module.head, module.embed_out]
    return [m for m in body if m is not None], [m for m in head if m is not None]


def _matrices(module: DecoderModel) -> tuple[int, int, list[ExpertGeometry]]:
    """(elements of the matrices for every token, elements of the head, mixtures of experts)."""
    from quire_models.modules.moe import MoEModule

    body, head = (sum(m.inputs * m.outputs for m in some) for some in _projections(module))
    mixtures = [
        ExpertGeometry(m.part.experts, m.part.router.top_k, _elements(m.part.expert) * m.router.inputs)
        for m in module.blocks.modules()
        if isinstance(m, MoEModule)
    ]
    return body, head, mixtures


def _elements(expert: Expert) -> int:
    return expert.first_outputs + expert.intermediate_size


def _read_bytes(loaded: LoadedModel) -> float:
    """Bytes of all projections as the products read them, without padding."""
    every = [m for some in _projections(loaded.module) for m in some]
    return sum(m.inputs * m.outputs * getattr(m.multiply, "element_bytes", loaded.dtype.itemsize) for m in every)


def _heads(decoder: ModelPart) -> Iterable[Heads]:
    """Attention of each block; an attention other than `quire_models.Attention` counts one query head per KV head."""
    from quire_models.parts.decoder import Attention
    from quire_models.parts.state import kv_shape

    for block in decoder.blocks:
        attention, shape = getattr(block, "attn", None), kv_shape(block)
        if not shape.kv_heads:
            continue
        if isinstance(attention, Attention):
            yield Heads(attention.heads, shape.kv_heads, shape.head_dim, attention.window)
        else:
            yield Heads(shape.kv_heads, shape.kv_heads, shape.head_dim, None)


def ideal_steps(work: Sequence[BenchRequest], shared: int) -> list[list[TokenSpan]]:
    """The fewest steps for a workload: all prompts in the first, then one token of each unfinished request.

    shared: tokens of a common prefix, computed once.
    """
    first = [TokenSpan(shared if i else 0, len(job.prompt) - (shared if i else 0), True) for i, job in enumerate(work)]
    longest = max((job.output_len for job in work), default=1)
    return [first] + [
        [TokenSpan(len(job.prompt) + made - 1, 1, True) for job in work if job.output_len > made]
        for made in range(1, longest)
    ]
