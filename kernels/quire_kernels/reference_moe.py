"""The definitions of `route` and `moe` in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire_kernels.moe import ClampedSwiglu, ExpertGroups, ExpertMlp, Routing
from quire_kernels.ops import Act, BoundLinear, GatedAct


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    if routing.scores == "sparsemixer":
        weights, chosen = _sparse_mixer(logits, routing)
    else:
        scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
        choice = scores if correction is None else scores + correction
        choice = choice if routing.groups is None else _within_groups(choice, routing.groups)
        chosen = choice.topk(routing.top_k, -1).indices
        weights = scores.gather(-1, chosen)
    if routing.renormalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=routing.least_sum)
    return weights * routing.scale, chosen


def _within_groups(choice: Tensor, groups: ExpertGroups) -> Tensor:
    """The scores without those of the groups that are not chosen."""
    grouped = choice.unflatten(-1, (groups.count, -1))
    best = grouped.topk(groups.best, -1).values.sum(-1).topk(groups.chosen, -1).indices
    allowed = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, True)
    return grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)


def _sparse_mixer(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    left, weights, chosen = logits, [], []
    for _ in range(routing.top_k):
        largest, best = left.max(-1, keepdim=True)
        distance = (largest - logits) / torch.maximum(logits.abs(), largest)
        near = left.masked_fill(distance > 2 * routing.jitter, -torch.inf)
        weights.append(near.softmax(-1).gather(-1, best))
        chosen.append(best)
        left = left.scatter(-1, best, -torch.inf)
    return torch.cat(weights, -1), torch.cat(chosen, -1)


class Activations(NamedTuple):
    """The ops that experts use between their matrices."""

    gated_act: GatedAct
    act: Act


class ReferenceExperts:
    """A mixture that computes one expert after another."""

    def __init__(
        self,
        up: Tensor | Sequence[BoundLinear],
        down: Tensor | Sequence[BoundLinear],
        mlp: ExpertMlp,
        up_bias: Tensor | None,
        down_bias: Tensor | None,
        activations: Activations,
    ) -> None:
        self.mlp, self.count, self._activations = mlp, len(up), activations
        self._matrices, self._biases = (up, down), (up_bias, down_bias)

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, W]; weights float32 and chosen int64 [T, J] -> [T, W], data type of x."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(self.count):
            tokens, place = (chosen == expert + (self.mlp.first or 0)).nonzero(as_tuple=True)
            factors, given = weights[tokens, place, None], x[tokens]
            if self.mlp.weighs_inputs:
                given = (given * factors).to(x.dtype)
            y = self.product(True, expert, self.activate(self.product(False, expert, given))).float()
            out.index_add_(0, tokens, y if self.mlp.weighs_inputs else y * factors)
        return out.to(x.dtype)

    def product(self, second: bool, expert: int, x: Tensor) -> Tensor:
        """x [rows, inputs] times the first or the second matrix of an expert, with its bias: [rows, outputs]."""
        matrix, bias = self._matrices[second][expert], self._biases[second]
        if isinstance(matrix, Tensor):
            return F.linear(x, matrix, None if bias is None else bias[expert])
        return matrix(x)

    def activate(self, products: Tensor) -> Tensor:
        """What the second matrix is applied to, [rows, N], by the products of the first."""
        act = self.mlp.act
        if isinstance(act, ClampedSwiglu):
            gate, up = products.chunk(2, -1)
            gate, up = gate.clamp(max=act.limit), up.clamp(-act.limit, act.limit)
            return gate * torch.sigmoid(act.alpha * gate) * (up + 1)
        return self._activations.gated_act(products, act) if self.mlp.gated else self._activations.act(products, act)
