"""Qwen3-ASR: chunks of one second of audio in the prompt of a Qwen 3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Architecture,
    Block,
    BlockPart,
    Context,
    Decoder,
    InputMapper,
    LayerNorm,
    Mlp,
    RowAttention,
    Transcriber,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import qwen
from quire_plugins.audio import whisper_encoder

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.audio.qwen3_asr.inputs import ChunkProcessor
    from quire_plugins.audio.qwen3_asr.prompts import QwenAsrPrompts

NAME = "Qwen3ASRForConditionalGeneration"
MARKER = "<|audio_pad|>"
HALVINGS = 3
"""Convolutions with stride 2."""

_TOWER = whisper_encoder.names("audio_tower", "tower") | WeightsMapper(
    (
        ("audio_tower.conv_out", "tower.conv_out"),
        ("audio_tower.conv2d1", "tower.convolutions.0"),
        ("audio_tower.conv2d2", "tower.convolutions.1"),
        ("audio_tower.conv2d3", "tower.convolutions.2"),
        ("audio_tower.ln_post", "tower.norm"),
        ("multi_modal_projector.linear_1", "tower.up"),
        ("multi_modal_projector.linear_2", "tower.down"),
    )
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


@dataclass(frozen=True, kw_only=True)
class ChunkedAudioTower:
    """Chunks of frames through strided convolutions, each with the same positions; blocks over windows of chunks; MLP.

    mels: size of a frame. channels: of the convolutions. chunk: frames of a chunk. window: chunks of a window. width:
    hidden size. outputs: size of the rows.
    """

    mels: int
    channels: int
    chunk: int
    window: int
    width: int
    outputs: int
    blocks: tuple[BlockPart, ...]
    norm: LayerNorm
    act: str

    @property
    def bands(self) -> int:
        """What the convolutions leave of a frame."""
        return _halved(self.mels)

    def rows(self, frames: int) -> int:
        """Embeddings of an audio of so many frames."""
        return frames // self.chunk * _halved(self.chunk) + _halved(frames % self.chunk)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.audio.qwen3_asr.tower import ChunkedAudioModule

        assert width == self.outputs, f"the decoder has width {width}, the tower {self.outputs}"
        return ChunkedAudioModule(self, builder)


def _halved(size: int) -> int:
    for _ in range(HALVINGS):
        size = (size + 1) // 2
    return size


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, "qwen3")
    return replace(qwen.qwen3(c.text_config), tied=c.tie_word_embeddings)


def tower(c: Any) -> ChunkedAudioTower:
    """Encoder and projector. Raises CheckpointError for an unknown encoder, or sizes that do not fit."""
    a = c.audio_config
    configs.check_model_type("audio encoder", a, "qwen3_asr_encoder")
    chunk = 2 * a.n_window
    if chunk != 100 or a.n_window_infer % chunk or not a.n_window_infer:
        raise CheckpointError(
            f"config.json: `audio_config.n_window` must be 50, and `n_window_infer` a multiple of 100; got {a.n_window}"
            f" and {a.n_window_infer}."
        )
    if a.output_dim != c.text_config.hidden_size:
        raise CheckpointError(
            f"config.json: `audio_config.output_dim` {a.output_dim} must be `text_config.hidden_size`"
            f" {c.text_config.hidden_size}."
        )
    norm, heads, act = LayerNorm(1e-5), a.encoder_attention_heads, configs.act(a.activation_function)
    block = Block(RowAttention(heads, heads, a.d_model // heads), Mlp(a.encoder_ffn_dim, act), norm)
    return ChunkedAudioTower(
        mels=a.num_mel_bins,
        channels=a.downsample_hidden_size,
        chunk=chunk,
        window=a.n_window_infer // chunk,
        width=a.d_model,
        outputs=a.output_dim,
        blocks=(block,) * a.encoder_layers,
        norm=norm,
        act=act,
    )


def _audio(context: Context) -> ChunkProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.qwen3_asr.inputs import ChunkProcessor

    config = parsed(context)
    return ChunkProcessor(context, config.audio_token_id, tower(config))


def _asks(context: Context) -> QwenAsrPrompts:
    from quire_plugins.audio.qwen3_asr.prompts import QwenAsrPrompts

    return QwenAsrPrompts(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Qwen3ASRForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio of any length."""
    yield InputMapper("qwen3-asr/audio", NAME, "audio", _audio, MARKER)


@hookimpl
def quire_transcribers() -> Iterable[Transcriber]:
    """Transcription of speech in a given language."""
    yield Transcriber("qwen3-asr", NAME, _asks, translates=False)
