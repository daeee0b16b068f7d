"""The op `route` in C++."""

from __future__ import annotations

from ctypes import addressof
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.moe.structs import RoutingStruct
from quire_kernels.cpu.structs import Op
from quire_kernels.moe import Routing

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

SCORES = ("softmax", "sigmoid", "sparsemixer")
"""In the order of the C++ enum `RouterScores`."""

COLUMNS = 4
"""Columns of a buffer, of two bytes at least, for a weight and the number of an expert."""


def route(ops: CpuOps, logits: Any, routing: Routing, correction: Tensor | None) -> tuple[Any, Any]:
    """The weights and the experts of each token. While blocks are traced, both are one proxy of `ChosenExperts`."""
    if correction is not None:
        correction = correction.detach().float().contiguous()
    rule = _rule(routing, correction)
    if isinstance(logits, Proxy):
        if logits.headed:
            raise Untraceable("the logits of a router are [tokens, experts]")
        tracer = logits.tracer
        tracer.kept += [rule, correction]
        chosen = tracer.write(Op.ROUTE, [logits], tracer.new(COLUMNS * routing.top_k), weight=addressof(rule))
        return chosen, chosen
    logits = logits.contiguous()
    out = torch.empty(len(logits), 2 * routing.top_k)
    ops.run(Op.ROUTE, [logits], out.view(logits.dtype), weight=addressof(rule))
    weights, experts = out.split(routing.top_k, -1)
    return weights.contiguous(), experts.view(torch.int32).long()


def joined(weights: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights and experts [tokens, top_k] as C++ reads them, `ChosenExperts`, as a tensor of this data type."""
    return torch.cat([weights.float().contiguous().view(torch.int32), chosen.int()], -1).view(dtype)


def _rule(routing: Routing, correction: Tensor | None) -> RoutingStruct:
    groups = routing.groups
    return RoutingStruct(
        routing.top_k,
        SCORES.index(routing.scores),
        int(routing.renormalize),
        *((0, 0, 0) if groups is None else (groups.count, groups.chosen, groups.best)),
        routing.scale,
        routing.least_sum,
        routing.jitter,
        None if correction is None else correction.data_ptr(),
    )
