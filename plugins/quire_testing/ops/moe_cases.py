"""Inputs of the operations `route` and `moe` for `check_op`: every kind of routing, gated and plain experts, biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from quire_kernels.moe import ClampedSwiglu, ExpertGroups, ExpertMlp, Routing

if TYPE_CHECKING:
    from quire_testing.ops.cases import RandomInputs

ROUTINGS = (
    Routing(2),
    Routing(3, renormalize=True, scale=2.5),
    Routing(4, "sigmoid", renormalize=True, groups=ExpertGroups(4, 2)),
    Routing(2, "softmax", groups=ExpertGroups(2, 1, best=1)),
    Routing(1, "sigmoid"),
    Routing(2, "sparsemixer", jitter=0.1),
)


def route(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """The arguments are logits, routing and correction."""
    for tokens in (1, 7):
        for routing in ROUTINGS:
            logits = draw(tokens, 16, scale=2.0)
            logits = logits + torch.arange(16, device=draw.device) / 1024  # no ties in bfloat16
            yield logits.float(), routing, None
            if routing.scores != "sparsemixer":
                yield logits.float(), routing, draw(16, scale=0.3, dtype=torch.float32)


def moe(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """up, down, mlp, up_bias, down_bias, x, weights, chosen; one expert for all, and all different."""
    for tokens, experts, top_k in ((1, 4, 2), (9, 4, 2), (5, 8, 1), (40, 3, 2)):
        yield from _mixtures(draw, tokens, experts, top_k)
        width = 32
        yield (*_matrices(draw, experts, 33, width, ExpertMlp("gelu")), *_chosen(draw, tokens, experts, top_k, width))


def _mixtures(draw: RandomInputs, tokens: int, experts: int, top_k: int) -> Iterator[tuple[Any, ...]]:
    mlps = (
        ExpertMlp(),
        ExpertMlp("relu2", gated=False),
        ExpertMlp(ClampedSwiglu(1.702, 1.0)),
        ExpertMlp("silu", True, True),
    )
    for mlp in mlps:
        for bias in (False, True):
            bound = _matrices(draw, experts, 24, 32, mlp, bias)
            yield (*bound, *_chosen(draw, tokens, experts, top_k, 32))
    x, weights, chosen = _chosen(draw, tokens, experts, top_k, 32)
    yield *_matrices(draw, experts, 24, 32, ExpertMlp()), x, weights, chosen[:1].expand(tokens, top_k).contiguous()


def _matrices(
    draw: RandomInputs, experts: int, hidden: int, width: int, mlp: ExpertMlp, bias: bool = False
) -> tuple[Any, ...]:
    outputs = 2 * hidden if mlp.gated else hidden
    up, down = draw(experts, outputs, width, scale=width**-0.5), draw(experts, width, hidden, scale=hidden**-0.5)
    return up, down, mlp, draw(experts, outputs) if bias else None, draw(experts, width) if bias else None


def _chosen(draw: RandomInputs, tokens: int, experts: int, top_k: int, width: int) -> tuple[Any, ...]:
    weights = draw(tokens, top_k, dtype=torch.float32).softmax(-1)
    order = torch.rand(tokens, experts, generator=draw.generator).argsort(-1)[:, :top_k]
    return draw(tokens, width), weights, order.to(draw.device)
