"""Whisper's encoder as parts, with the names of its tensors. Audio plugins use this module; it is not a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire_models import LayerNorm, Mlp, RowAttention
from quire_models.loading import config_fields as configs
from quire_models.loading.weight_names import BART_BLOCKS, WeightsMapper
from quire_models.parts.audio import AudioTower
from quire_models.parts.decoder import Block

if TYPE_CHECKING:
    from torch import Tensor


def encoder(c: Any) -> AudioTower:
    """Describes the encoder of a `WhisperConfig` or of an encoder's own config; embeddings have the encoder's width."""
    norm, heads = LayerNorm(1e-5), c.encoder_attention_heads
    act = configs.act(c.activation_function)
    block = Block(RowAttention(heads, heads, c.d_model // heads), Mlp(c.encoder_ffn_dim, act), norm)
    return AudioTower(
        mels=c.num_mel_bins,
        width=c.d_model,
        count=c.max_source_positions,
        blocks=(block,) * c.encoder_layers,
        norm=norm,
    )


def names(theirs: str, ours: str) -> WeightsMapper:
    """Maps the tensors of an encoder from the prefix `theirs` of a checkpoint to `ours`."""
    return BART_BLOCKS | WeightsMapper(
        (
            (f"{theirs}.conv1", f"{ours}.conv1"),
            (f"{theirs}.conv2", f"{ours}.conv2"),
            (f"{theirs}.embed_positions.weight", f"{ours}.positions"),
            (f"{theirs}.layers", f"{ours}.blocks"),
            (f"{theirs}.layer_norm", f"{ours}.norm"),
        ),
        transforms=((f"{ours}.conv?.weight", _windowed),),
        zeros=(f"{ours}.blocks.*.attn.k.bias",),
    )


def _windowed(kernel: Tensor, decoder: Any) -> Tensor:
    """A convolution [outputs, size, reach] as a matrix over concatenated neighbours."""
    return kernel.transpose(1, 2).flatten(1)
