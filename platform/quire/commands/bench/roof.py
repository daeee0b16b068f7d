"""Roof: what the steps of a model cost at the least, in bytes to read and operations to do.

It counts what cannot be avoided: weights once a step, the keys and values of the positions before a chunk,
the head for rows that give a token. It knows neither engine nor machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quire.commands.bench.workload import Job

if TYPE_CHECKING:
    from quire.engine.load import Loaded
    from quire_models.blocks import DecoderModel
    from quire_models.parts import Decoder
    from quire_models.projection import Projection


class Span(NamedTuple):
    """Positions start … start + length - 1 of one seq, computed in one step; `samples`: the last gives a token."""

    start: int
    length: int
    samples: bool


class Cost(NamedTuple):
    """What one step must do at the least: floating-point operations, and bytes to read."""

    flops: float
    bytes: float


class Heads(NamedTuple):
    """The attention of one block. window: positions that a token sees, None = all up to its own."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    def seen(self, span: Span) -> int:
        """Pairs of a token of the span and a position that it sees."""
        first, last = span.start + 1, span.start + span.length  # positions that its first and last token see
        if self.window is None or last <= self.window:
            return (first + last) * span.length // 2
        whole = max(self.window - first, 0)  # tokens that see less than a window
        return (first + first + whole - 1) * whole // 2 + (span.length - whole) * self.window

    def earlier(self, span: Span) -> int:
        """Positions before the span whose keys and values it needs."""
        return span.start if self.window is None else min(span.start, self.window - 1)


class Experts(NamedTuple):
    """A mixture: each token goes through `chosen` of `total` experts of so many elements each."""

    total: int
    chosen: int
    elements: int

    def used(self, tokens: int) -> float:
        """How many experts so many tokens reach, if every expert is as likely as another."""
        return self.total * (1 - (1 - self.chosen / self.total) ** tokens)


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model that decide what a step costs.

    body: elements of the matrices that every token is multiplied by. head: those for rows that give a token.
    heads, experts: of the blocks, with how many blocks have such. weight_bytes (of body and head, as they are stored),
    expert_bytes, kv_bytes: of one element.
    """

    body: int
    head: int
    heads: tuple[tuple[Heads, int], ...]
    experts: tuple[tuple[Experts, int], ...]
    weight_bytes: float
    expert_bytes: int
    kv_bytes: int

    @classmethod
    def of(cls, loaded: Loaded) -> Geometry:
        """The geometry of a model in memory."""
        body, head, experts = _matrices(loaded.module)
        return cls(
            body,
            head,
            tuple(Counter(_heads(loaded.decoder)).items()),
            tuple(Counter(experts).items()),
            _read_bytes(loaded) / (body + head),
            loaded.dtype.itemsize,
            loaded.kv_dtype.itemsize,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one position's keys and values over all blocks."""
        return sum(2 * h.kv_heads * h.head_dim * self.kv_bytes * blocks for h, blocks in self.heads)

    def cost(self, spans: Sequence[Span]) -> Cost:
        """What a step of these spans must do at the least."""
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
        return Cost(flops, moved + kv_elements * self.kv_bytes)


def _projections(module: DecoderModel) -> tuple[list[Projection], list[Projection]]:
    """Those that every token is multiplied by, and those of the head."""
    from quire_models.projection import Projection

    body = [*(m for m in module.blocks.modules() if isinstance(m, Projection)), module.embed_in]
    head = [module.head, module.embed_out]
    return [m for m in body if m is not None], [m for m in head if m is not None]


def _matrices(module: DecoderModel) -> tuple[int, int, list[Experts]]:
    """(elements of every token's matrices, elements of the head's, mixtures)."""
    from quire_models.mlp import Mixture

    body, head = (sum(m.inputs * m.outputs for m in some) for some in _projections(module))
    mixtures = [
        Experts(m.part.experts, m.part.top_k, 3 * m.part.hidden * m.router.inputs)
        for m in module.blocks.modules()
        if isinstance(m, Mixture)
    ]
    return body, head, mixtures


def _read_bytes(loaded: Loaded) -> float:
    """Of all projections, as products read them, without what is padding."""
    every = [m for some in _projections(loaded.module) for m in some]
    return sum(m.inputs * m.outputs * getattr(m.multiply, "element_bytes", loaded.dtype.itemsize) for m in every)


def _heads(decoder: Decoder) -> Iterable[Heads]:
    """One for each block; an attention that is no `parts.Attention` is taken to have a query head for each KV head."""
    from quire_models.parts import Attention

    for block in decoder.blocks:
        attention, shape = block.attn, block.attn.kv_shape
        if isinstance(attention, Attention):
            yield Heads(attention.heads, shape.kv_heads, shape.head_dim, attention.window)
        else:
            yield Heads(shape.kv_heads, shape.kv_heads, shape.head_dim, None)


def ideal_steps(work: Sequence[Job], shared: int) -> list[list[Span]]:
    """The fewest steps for a workload: every prompt in the first, then a token of each request that has more to come.

    shared: tokens that all prompts begin with and that need computing once only.
    """
    first = [Span(shared if i else 0, len(job.prompt) - (shared if i else 0), True) for i, job in enumerate(work)]
    longest = max((job.output_len for job in work), default=1)
    return [first] + [
        [Span(len(job.prompt) + made - 1, 1, True) for job in work if job.output_len > made]
        for made in range(1, longest)
    ]
