"""The modules of decoders with several residual streams, which lie side by side: [tokens, streams * width]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.plugin import ForwardBatch, ModuleBuilder
from quire_plugins.architectures.per_layer.modules import INPUTS, PerLayerDecoderModel

if TYPE_CHECKING:
    from quire_plugins.architectures.per_layer.altup import AltUpBlock, AltUpDecoder, SparseActivation


class AltUpModel(PerLayerDecoderModel):
    """The module that the part `AltUpDecoder` builds."""

    first_modules = (*PerLayerDecoderModel.first_modules, "streams_in")
    last_modules = (*PerLayerDecoderModel.last_modules, "streams_out")

    def __init__(self, part: AltUpDecoder, builder: ModuleBuilder) -> None:
        super().__init__(part, builder)
        width, others = part.width, range(1, part.streams)
        self.streams_in = nn.ModuleList(builder.projection(width, width) for _ in others)
        self.streams_out = nn.ModuleList(builder.projection(width, width) for _ in others)

    def embed_tokens(self, fwd: ForwardBatch) -> Tensor:
        """Input of the first block, [tokens, streams * width]."""
        x = super().embed_tokens(fwd)
        return torch.cat([x, *(_as_large(matrix(x, fwd), x) for matrix in self.streams_in)], -1)

    def _steps(self) -> Sequence[Callable[[Tensor, ForwardBatch], Tensor]]:
        return (*super()._steps(), self._joined)

    def _joined(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """[tokens, streams * width] -> [tokens, width]."""
        first, *others = x.unflatten(-1, (-1, self._width)).unbind(1)
        found = [_as_large(matrix(y, fwd), first) for matrix, y in zip(self.streams_out, others, strict=True)]
        return torch.stack([first, *found]).mean(0)


class AltUpResidualBlock(nn.Module):
    """The module that the part `AltUpBlock` builds."""

    def __init__(self, width: int, part: AltUpBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self._width, self._ops = part, width, builder.ops
        self.attn, self.mlp = part.attn.build(width, builder), part.mlp.build(width, builder)
        self.attn_in, self.attn_out, self.mlp_in, self.mlp_out, self.laurel_norm, self.router_norm, self.input_norm = (
            part.norm.build(width, builder) for _ in range(7)
        )
        self.laurel_left = builder.projection(width, part.laurel)
        self.laurel_right = builder.projection(part.laurel, width)
        exact, streams = builder.unquantized(), part.streams
        self.router = exact.projection(width, streams)
        self.predict = exact.projection(streams, streams**2)
        self.correct = exact.projection(streams, streams)
        self.output_scale = builder.parameter(width)
        self.input_gate = builder.projection(width, part.inputs)
        self.input_out = builder.projection(part.inputs, width)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, streams * width] -> the same shape."""
        part = self.part
        streams = x.unflatten(-1, (-1, self._width))
        mixing = self.predict(self._routed(streams[:, part.active], fwd), fwd)
        predicted = streams + torch.bmm(mixing.unflatten(-1, (-1, part.streams)), streams)
        expected = predicted[:, part.active]
        computed = self._computed(expected, fwd)
        weights = self.correct(self._routed(computed, fwd), fwd) + 1.0
        corrected = predicted + weights[:, :, None] * (computed - expected)[:, None]
        corrected[:, 1:] += self._input(corrected[:, part.active], fwd)[:, None]
        return corrected.flatten(1)

    def _routed(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """Of one stream, [tokens, width] -> [tokens, streams]."""
        return torch.tanh(self.router(self.router_norm(x) * self._width**-1.0, fwd))

    def _computed(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """What attention and MLP make of one stream, [tokens, width]."""
        h = self.attn_in(x)
        beside = h + self.laurel_norm(self.laurel_right(self.laurel_left(h, fwd), fwd))
        x = (x + self.attn_out(self.attn(h, fwd)) + beside) * 2**-0.5
        return x + self.mlp_out(self.mlp(self.mlp_in(x), fwd))

    def _input(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """The embedding for this block, gated by one stream, [tokens, width]."""
        x = x * self.output_scale if self.part.scaled else x
        gate = self._ops.act(self.input_gate(x, fwd), self.part.act)
        return self.input_norm(self.input_out(gate * fwd.step_cache[INPUTS][:, self.part.layer], fwd))


class SparseActivationModule(nn.Module):
    """The module that the part `SparseActivation` builds."""

    def __init__(self, part: SparseActivation, builder: ModuleBuilder) -> None:
        super().__init__()
        self._act, self._ops = part.act, builder.ops
        self._deviations = NormalDist().inv_cdf(part.sparsity)

    def forward(self, x: Tensor) -> Tensor:
        """x [tokens, width] -> the same shape."""
        bound = x.mean(-1, keepdim=True) + x.std(-1, keepdim=True, unbiased=False) * self._deviations
        return self._ops.act(torch.relu(x - bound), self._act)


def _as_large(x: Tensor, other: Tensor) -> Tensor:
    """x scaled to the root mean square of each row of `other`."""
    size = other.square().mean(-1, keepdim=True).sqrt()
    return x * size / x.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt()
