"""The modules of `Conformer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, glu, pad, scaled_dot_product_attention, silu

from quire_models import LayerNorm, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.granite_speech.conformer import Conformer

NORM = LayerNorm(1e-5)
BATCH_NORM_EPS = 1e-5


class ConformerModule(nn.Module):
    """Frames of several items to hidden states."""

    def __init__(self, part: Conformer, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.input_linear = builder.projection(part.inputs, part.width, bias=True)
        self.blocks = nn.ModuleList(ConformerBlock(part, builder.at_layer(i)) for i in range(part.num_blocks))
        self.out = builder.projection(part.width, part.classes, bias=True)
        self.out_mid = builder.projection(part.classes, part.width, bias=True)

    def forward(self, frames: Tensor, counts: Sequence[int], call: TowerCall) -> Tensor:
        """frames [n, inputs] -> [n, width]. counts: frames of each item, n in all."""
        context = call.context(counts)
        x = self.input_linear(frames, context)
        for i, block in enumerate(self.blocks, 1):
            x = block(x, counts, context)
            if i == self.part.num_blocks // 2:
                x = x + self.out_mid(self.out(x, context).softmax(-1), context)
        return x


class ConformerBlock(nn.Module):
    """x + half an MLP, + attention, + convolution, + half an MLP; then a norm."""

    def __init__(self, part: Conformer, builder: ModuleBuilder) -> None:
        super().__init__()
        self.ff1, self.ff2 = HalfMlp(part, builder), HalfMlp(part, builder)
        self.attn = WindowAttention(part, builder)
        self.conv = ConvolutionBranch(part, builder)
        self.post_norm = NORM.build(part.width, builder)

    def forward(self, x: Tensor, counts: Sequence[int], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        x = x + self.ff1(x, context)
        x = x + self.attn(x, counts, context)
        x = x + self.conv(x, counts, context)
        normed: Tensor = self.post_norm(x + self.ff2(x, context))
        return normed


class HalfMlp(nn.Module):
    """Half of what an MLP behind a norm gives."""

    def __init__(self, part: Conformer, builder: ModuleBuilder) -> None:
        super().__init__()
        self.pre_norm = NORM.build(part.width, builder)
        self.up = builder.projection(part.width, part.width * part.mlp, bias=True)
        self.down = builder.projection(part.width * part.mlp, part.width, bias=True)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        return 0.5 * self.down(silu(self.up(self.pre_norm(x), context)), context)


class WindowAttention(nn.Module):
    """Attention within windows of an item, with embeddings of distances. distances: [2 reach + 1, head_dim]."""

    def __init__(self, part: Conformer, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        size = part.heads * part.head_dim
        self.pre_norm = NORM.build(part.width, builder)
        self.to_q = builder.projection(part.width, size)
        self.to_kv = builder.projection(part.width, 2 * size)
        self.to_out = builder.projection(size, part.width, bias=True)
        self.distances = builder.parameter(2 * part.reach + 1, part.head_dim)

    def forward(self, x: Tensor, counts: Sequence[int], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        x, size = self.pre_norm(x), self.part.context
        states = torch.cat([self.to_q(x, context), self.to_kv(x, context)], -1)
        windows = torch.cat([pad(item, (0, 0, 0, -len(item) % size)) for item in states.split(list(counts))])
        # [windows, heads, frames of a window, head_dim] each
        q, k, v = windows.unflatten(0, (-1, size)).unflatten(-1, (3, self.part.heads, -1)).permute(2, 0, 3, 1, 4)
        at = torch.arange(size, device=x.device)
        apart = self.distances[at[:, None] - at + self.part.reach]  # [frames, frames, head_dim]
        scale = self.part.head_dim**-0.5
        bias = torch.einsum("whqd,qkd->whqk", q, apart) * scale
        bias = bias.masked_fill(~self._real(counts, x)[:, None, None], torch.finfo(bias.dtype).min)
        seen = scaled_dot_product_attention(q, k, v, bias, scale=scale).transpose(1, 2).flatten(2)
        lengths = [count + -count % size for count in counts]
        items = seen.flatten(0, 1).split(lengths)
        found: Tensor = self.to_out(
            torch.cat([item[:count] for item, count in zip(items, counts, strict=True)]), context
        )
        return found

    def _real(self, counts: Sequence[int], like: Tensor) -> Tensor:
        """Which frames of each window are not padding: bool [windows, frames of a window]."""
        size = self.part.context
        left = torch.tensor([count - start for count in counts for start in range(0, count, size)], device=like.device)
        return torch.arange(size, device=like.device) < left[:, None]


class ConvolutionBranch(nn.Module):
    """A gated product, a depthwise convolution over the frames of an item, a batch norm, a product.

    depthwise: [channels, 1, kernel].
    """

    def __init__(self, part: Conformer, builder: ModuleBuilder) -> None:
        super().__init__()
        channels, kernel = part.width * part.expansion, part.kernel
        self.norm = NORM.build(part.width, builder)
        self.up_conv = builder.projection(part.width, 2 * channels, bias=True)
        self.depthwise = builder.parameter(channels, 1, kernel)
        self.batch_norm = BatchNorm(channels, builder)
        self.down_conv = builder.projection(channels, part.width, bias=True)
        self._padding = kernel // 2, kernel // 2 - (kernel + 1) % 2

    def forward(self, x: Tensor, counts: Sequence[int], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        x = glu(self.up_conv(self.norm(x), context))
        around = [
            conv1d(pad(item.T, self._padding), self.depthwise, groups=x.shape[1]).T for item in x.split(list(counts))
        ]
        found: Tensor = self.down_conv(silu(self.batch_norm(torch.cat(around))), context)
        return found


class BatchNorm(nn.Module):
    """A batch norm with the statistics of training."""

    def __init__(self, channels: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self.weight, self.bias = builder.parameter(channels), builder.parameter(channels)
        self.running_mean, self.running_var = builder.parameter(channels), builder.parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, channels] -> [n, channels]."""
        scale = self.weight.float() * (self.running_var.float() + BATCH_NORM_EPS).rsqrt()
        return (x.float() * scale + (self.bias.float() - self.running_mean.float() * scale)).to(x.dtype)
