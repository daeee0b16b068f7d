"""Parts of audio towers: frozen descriptions that import no torch.

    log-mel frames ─▶ two convolutions, the second with stride 2 ─▶ blocks ─▶ norm ─▶ embedding rows

Audio has any length up to a bound, and a token attends only to tokens of the same audio. A tower concatenates the
tokens of all audio of a call; a context (`quire_models.towers.tower`) says where each begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.decoder import BlockPart, Part
from quire_models.parts.rope_config import Rope

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class AudioTower:
    """An audio encoder as in Whisper: convolutions, blocks, final norm.

    mels: mel bins of a frame (Hugging Face: num_mel_bins). width: hidden size (d_model). count: maximum tokens of one
    audio, two frames each, and number of learned positions (max_source_positions). rope: that of the blocks, in place
    of learned positions. act: activation after the convolutions. norm: the final norm. pooled: before it, every two
    tokens become one, their mean; an odd last token is dropped. projected: a linear layer with bias to the decoder's
    embedding width follows; without it both widths must be equal.
    """

    mels: int
    width: int
    count: int
    blocks: tuple[BlockPart, ...]
    norm: Part
    rope: Rope | None = None
    act: str = "gelu"
    pooled: bool = False
    projected: bool = False

    def rows(self, tokens: int) -> int:
        """Number of embedding rows for this many tokens."""
        return tokens // 2 if self.pooled else tokens

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower, `quire_models.towers.audio.AudioEncoderModule`, which documents its input tensors."""
        from quire_models.towers.audio import AudioEncoderModule

        return AudioEncoderModule(width, self, builder)
