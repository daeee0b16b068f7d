"""Modules of linear attention by the gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire_models.modules.recurrent.convolution import CausalConvolution, GatedNormModule, float32_parameter

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.recurrent.delta import GatedDeltaNet, KimiDelta
    from quire_models.step.forward_batch import ForwardBatch


class GatedDeltaNetModule(nn.Module):
    """The module that the part `parts.recurrent.delta.GatedDeltaNet` builds."""

    def __init__(self, width: int, part: GatedDeltaNet, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self.layer = part, builder.layer
        self._ops = builder.ops
        keys, values = part.key_heads * part.key_dim, part.heads * part.value_dim
        sizes = {"q": keys, "k": keys, "v": values, "z": values, "b": part.heads, "a": part.heads}
        self._sizes = [part.channels, values, part.heads, part.heads]
        self.in_proj = builder.projection(width, {name: sum(map(sizes.__getitem__, name)) for name in part.matrices})
        pieces = {f"{name}_conv": sizes[name] for name in "qkv"}
        self.conv = CausalConvolution(part.channels, part.kernel, False, part.act, builder, pieces=pieces)
        self.A_log, self.dt_bias = (float32_parameter(builder, part.heads) for _ in range(2))
        self.norm = GatedNormModule(part.value_dim, part.value_dim, part.eps, "silu", builder)
        self.o = builder.projection(values, width)
        self.process_weights()

    def process_weights(self) -> None:
        self.rate = -self.A_log.exp()

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state."""
        assert fwd.state is not None
        assert fwd.state_slots is not None
        part = self.part
        qkv, gate, weight, decay = self.in_proj(x, fwd).split(self._sizes, -1)
        seen = self._ops.gated_delta(
            self.conv(qkv, fwd),
            decay,
            weight,
            self.rate,
            self.dt_bias,
            fwd.state.tensors[self.layer][1],
            fwd.state_slots,
            fwd.rows,
            (part.key_dim, part.value_dim),
            part.factor,
        )
        return self.o(self.norm(seen.flatten(1), gate), fwd)


class KimiDeltaModule(nn.Module):
    """The module that the part `parts.recurrent.delta.KimiDelta` builds."""

    def __init__(self, width: int, part: KimiDelta, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self.layer = part, builder.layer
        self._ops = builder.ops
        inner, rank = part.heads * part.head_dim, part.head_dim
        names = {"q": inner, "k": inner, "v": inner, "b": part.heads, "f_a": rank, "g_a": rank}
        self._sizes = [3 * inner, part.heads, rank, rank]
        self.in_proj = builder.projection(width, names)
        self.f_b, self.g_b = (builder.projection(rank, inner) for _ in range(2))
        pieces = dict.fromkeys(("q_conv", "k_conv", "v_conv"), inner)
        self.conv = CausalConvolution(3 * inner, part.kernel, False, part.act, builder, pieces=pieces)
        self.A_log, self.dt_bias = float32_parameter(builder, part.heads), float32_parameter(builder, inner)
        self.norm = GatedNormModule(part.head_dim, part.head_dim, part.eps, "sigmoid", builder)
        self.o = builder.projection(inner, width)
        self.process_weights()

    def process_weights(self) -> None:
        self.rate = -self.A_log.exp()

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state."""
        assert fwd.state is not None
        assert fwd.state_slots is not None
        qkv, weight, forget, gate = self.in_proj(x, fwd).split(self._sizes, -1)
        seen = self._ops.gated_delta(
            self.conv(qkv, fwd),
            self.f_b(forget, fwd),
            weight,
            self.rate,
            self.dt_bias,
            fwd.state.tensors[self.layer][1],
            fwd.state_slots,
            fwd.rows,
            (self.part.head_dim, self.part.head_dim),
        )
        return self.o(self.norm(seen.flatten(1), self.g_b(gate, fwd)), fwd)
