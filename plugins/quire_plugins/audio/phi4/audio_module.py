"""The modules of `Phi4AudioTower`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad, scaled_dot_product_attention, silu

from quire_models import Items, LayerNorm, ModuleBuilder, TowerCall
from quire_plugins.audio.phi4.audio_encoder import WINDOW
from quire_plugins.audio.phi4.shortening import Shortening

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.phi4.audio_encoder import Phi4AudioTower

NORM = LayerNorm(1e-5)
DUMMY_FRAMES = 3000
"""Frames of thirty seconds of speech."""


class Phi4AudioModule(nn.Module):
    """Audio to embeddings. An item has `frames` [frames, mels] and `beside_images`, int64 [1]: 1 = the prompt has
    images too. mean, inverse_deviation: of the frames of the training data, [mels]. distances: [distances, heads].
    """

    def __init__(self, width: int, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.mean, self.inverse_deviation = builder.parameter(part.mels), builder.parameter(part.mels)
        self.shortened = Shortening(part, builder)
        self.distances = builder.parameter(part.reach * (1 if part.symmetric else 2), part.heads)
        self.blocks = nn.ModuleList(Phi4AudioBlock(part, builder.at_layer(i)) for i in range(part.num_blocks))
        self.speech = part.projector.build(width, builder)
        self.beside_images = part.projector.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item."""
        counts = [self.part.rows(len(item["frames"])) for item in items]
        normal = [(item["frames"] - self.mean) * self.inverse_deviation for item in items]
        x = self.shortened(normal, call.context(counts))
        # an audio longer than a window is cut into windows, the last one padded with zeros that tokens attend to
        lengths = [count if count <= WINDOW else count + -count % WINDOW for count in counts]
        padded = [
            pad(some, (0, 0, 0, length - len(some))) for some, length in zip(x.split(counts), lengths, strict=True)
        ]
        runs = [run for length in lengths for run in ([length] if length <= WINDOW else [WINDOW] * (length // WINDOW))]
        x, context = torch.cat(padded), call.context(lengths, runs)
        biases = {run: self._bias(run) for run in set(runs)}
        for block in self.blocks:
            x = block(x, runs, biases, context)
        rows = [some[:count] for some, count in zip(x.split(lengths), counts, strict=True)]
        return self._projected(items, rows, call)

    def _projected(self, items: Items, rows: Sequence[Tensor], call: TowerCall) -> list[Tensor]:
        counts = [len(some) for some in rows]
        x, context = torch.cat(list(rows)), call.context(counts)
        chosen = [bool(item["beside_images"].item()) for item in items]
        found = {
            beside: (self.beside_images if beside else self.speech)(x, context).split(counts) for beside in set(chosen)
        }
        return [found[beside][i] for i, beside in enumerate(chosen)]

    def _bias(self, run: int) -> Tensor:
        """Biases of the scores in a run of tokens: [heads, run, run]."""
        at = torch.arange(run, device=self.distances.device)
        apart = (at - at[:, None]).clamp(-self.part.reach, self.part.reach - 1)
        index = apart.abs() if self.part.symmetric else apart + self.part.reach
        return self.distances[index].permute(2, 0, 1)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """Half a minute of audio."""
        frames = self.mean.new_zeros(DUMMY_FRAMES, self.part.mels)
        beside = torch.zeros(1, dtype=torch.int64, device=frames.device)
        return {"frames": frames, "beside_images": beside}, self.part.rows(DUMMY_FRAMES)


class Phi4AudioBlock(nn.Module):
    """x + half an MLP, + attention, + convolution, + half an MLP; then a norm."""

    def __init__(self, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.feed_forward_in, self.feed_forward_out = GatedHalf(part, builder), GatedHalf(part, builder)
        self.attn_norm = NORM.build(part.width, builder)
        self.attn = BiasedAttention(part, builder)
        self.conv = CausalBranch(part, builder)
        self.layer_norm = NORM.build(part.width, builder)

    def forward(self, x: Tensor, runs: Sequence[int], biases: Mapping[int, Tensor], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]. runs: lengths of what attends to itself; biases: [heads, run, run] for each."""
        x = x + self.feed_forward_in(x, context)
        x = x + self.attn(self.attn_norm(x), runs, biases, context)
        x = x + self.conv(x, runs, context)
        normed: Tensor = self.layer_norm(x + self.feed_forward_out(x, context))
        return normed


class GatedHalf(nn.Module):
    """Half of what a gated MLP behind a norm gives; in the matrix the gate comes second."""

    def __init__(self, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.layer_norm = NORM.build(part.width, builder)
        self.gate_up = builder.projection(part.width, 2 * part.mlp, bias=True)
        self.down = builder.projection(part.mlp, part.width, bias=True)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        up, gate = self.gate_up(self.layer_norm(x), context).chunk(2, -1)
        return 0.5 * self.down(up * silu(gate), context)


class BiasedAttention(nn.Module):
    """Attention within runs of tokens, with a bias for each distance."""

    def __init__(self, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self._heads = part.heads
        self.qkv = builder.projection(part.width, {"q": part.width, "k": part.width, "v": part.width}, bias=True)
        self.o = builder.projection(part.width, part.width, bias=True)

    def forward(self, x: Tensor, runs: Sequence[int], biases: Mapping[int, Tensor], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        heads = self.qkv(x, context).unflatten(-1, (3, self._heads, -1)).permute(1, 2, 0, 3)
        seen = []
        for qkv, run in zip(heads.split(list(runs), 2), runs, strict=True):
            q, k, v = qkv  # [heads, run, head_dim] each
            seen.append(scaled_dot_product_attention(q[None], k[None], v[None], biases[run][None])[0])
        found: Tensor = self.o(torch.cat(seen, 1).transpose(0, 1).flatten(1), context)
        return found


class CausalBranch(nn.Module):
    """A gated product, a causal depthwise convolution over the tokens of a run, two products.

    bias_out, bias_gate: [width], added before the gate applies. depthwise: [width, 1, kernel] and its bias.
    """

    def __init__(self, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self._before = part.kernel - 1
        self.layer_norm = NORM.build(part.width, builder)
        self.gated = builder.projection(part.width, 2 * part.width, bias=True)
        self.bias_out, self.bias_gate = builder.parameter(part.width), builder.parameter(part.width)
        self.depthwise = Depthwise(part.width, part.kernel, builder)
        self.pointwise = builder.projection(part.width, part.width, bias=True)
        self.out = builder.projection(part.width, part.width, bias=True)

    def forward(self, x: Tensor, runs: Sequence[int], context: TowerContext) -> Tensor:
        """x [n, width] -> [n, width]."""
        out, gate = self.gated(self.layer_norm(x), context).chunk(2, -1)
        x = (out + self.bias_out) * silu(gate + self.bias_gate)
        around = torch.cat([self.depthwise(pad(some.T, (self._before, 0))).T for some in x.split(list(runs))])
        found: Tensor = self.out(silu(self.pointwise(around, context)), context)
        return found


class Depthwise(nn.Module):
    """A convolution of each channel alone. weight: [channels, 1, kernel]."""

    def __init__(self, channels: int, kernel: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self.weight, self.bias = builder.parameter(channels, 1, kernel), builder.parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x [channels, n + kernel - 1] -> [channels, n]."""
        return conv1d(x, self.weight, self.bias, groups=len(self.bias))
