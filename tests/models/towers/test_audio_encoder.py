"""Whisper's encoder, with and without what Qwen2-Audio changes, against transformers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_kernels import select
from quire_models import ModuleBuilder, TowerCall
from quire_models.testing import load_state_dict_into
from quire_plugins.audio import whisper_encoder
from quire_testing.tiny import reference_model

COUNT, MELS, WIDTH = 20, 16, 64
"""Most tokens, numbers of a frame, and the width."""

SIZES = {
    "num_mel_bins": MELS,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "max_source_positions": COUNT,
}
HEARD = [2 * COUNT, 2 * COUNT - 1, 31, 14, 4, 3, 2 * COUNT]
"""How many frames sound, of 2 * COUNT."""


def ours(reference: Any, **changes: Any) -> Any:
    """Our tower with the weights of transformers' encoder."""
    part = replace(whisper_encoder.encoder(reference.config), **changes)
    tower = part.build(WIDTH, ModuleBuilder(select.reference(), torch.float32, torch.device("cpu")))
    state = {f"encoder.{name}": tensor for name, tensor in reference.state_dict().items()}
    decoder: Any = SimpleNamespace(tied=False)
    load_state_dict_into(nn.ModuleDict({"tower": tower}), decoder, whisper_encoder.names("encoder", "tower"), state)
    return tower


@pytest.fixture(scope="module")
def whisper() -> Any:
    decoder = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 8, "vocab_size": 264}
    return reference_model("WhisperForConditionalGeneration", **SIZES, **decoder).model.encoder


@pytest.fixture(scope="module")
def qwen() -> Any:
    return reference_model("Qwen2AudioEncoder", **SIZES)


def log_mels(count: int) -> Tensor:
    """[count, frames, mels]."""
    return torch.randn(count, 2 * COUNT, MELS, generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_whole_windows_are_encoded_as_by_transformers(whisper: Any) -> None:
    frames = log_mels(3)
    expected = whisper(frames.transpose(1, 2)).last_hidden_state
    rows = ours(whisper)([{"frames": some} for some in frames], TowerCall("cpu"))
    torch.testing.assert_close(torch.stack(rows), expected, atol=1e-5, rtol=0)


def heard(frames: Tensor, count: int) -> dict[str, Tensor]:
    """A medium of which so many frames sound: whole pairs, and the frame after them if there is one."""
    return {"frames": frames[: -(-count // 2) * 2 + 1]}


@torch.inference_mode()
def test_audio_of_many_lengths_is_encoded_as_by_transformers_with_what_does_not_sound_masked(qwen: Any) -> None:
    frames = log_mels(len(HEARD))
    tokens = torch.tensor([-(-count // 2) for count in HEARD])
    unseen = torch.arange(COUNT)[None] >= tokens[:, None]
    mask = torch.zeros(len(HEARD), 1, COUNT, COUNT).masked_fill(unseen[:, None, None], float("-inf"))
    expected = qwen(frames.transpose(1, 2), attention_mask=mask).last_hidden_state
    items = [heard(some, count) for some, count in zip(frames, HEARD, strict=True)]
    rows = ours(qwen, pooled=True)(items, TowerCall("cpu"))
    assert [len(some) for some in rows] == [count // 2 for count in tokens.tolist()]
    for some, wanted in zip(rows, expected, strict=True):
        torch.testing.assert_close(some, wanted[: len(some)], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_what_is_computed_for_one_does_not_depend_on_the_others(qwen: Any) -> None:
    tower = ours(qwen, pooled=True)
    items = [heard(some, count) for some, count in zip(log_mels(len(HEARD)), HEARD, strict=True)]
    together = tower(items, TowerCall("cpu"))
    for i, item in enumerate(items):
        among = [item if j == i else {"frames": other["frames"] + 1e3} for j, other in enumerate(items)]
        assert torch.equal(tower(among, TowerCall("cpu"))[i], together[i])
        torch.testing.assert_close(tower([item], TowerCall("cpu"))[0], together[i], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_rows_of_another_width_need_a_matrix(qwen: Any) -> None:
    part = whisper_encoder.encoder(qwen.config)
    builder = ModuleBuilder(select.reference(), torch.float32, torch.device("cpu"))
    with pytest.raises(AssertionError, match="the decoder has width 8, but the tower 64"):
        part.build(8, builder)
    tower: Any = replace(part, projected=True, pooled=True).build(8, builder)
    item, length = tower.dummy_input()
    (rows,) = tower([item], TowerCall("cpu"))
    assert rows.shape == (length, 8) == (COUNT // 2, 8)


def test_a_missing_bias_is_zero_only_where_the_names_say_so(qwen: Any) -> None:
    tower = ours(qwen)
    q, k, v = tower.blocks[0].attn.qkv.bias.split(WIDTH)
    assert (k == 0).all()
    assert torch.cat([q, v]).all()
    state = {f"encoder.{name}": tensor for name, tensor in qwen.state_dict().items()}
    del state["encoder.layers.1.self_attn.v_proj.bias"]
    names, decoder = whisper_encoder.names("encoder", "tower"), SimpleNamespace(tied=False)
    with pytest.raises(CheckpointError, match=r"lacks tensors for tower\.blocks\.1\.attn\.v\.bias\."):
        load_state_dict_into(nn.ModuleDict({"tower": tower}), decoder, names, state)  # type: ignore[arg-type]
    state |= {f"encoder.layers.1.self_attn.{x}_proj.bias": torch.full((WIDTH,), 0.5) for x in "kv"}
    load_state_dict_into(nn.ModuleDict({"tower": tower}), decoder, names, state)  # type: ignore[arg-type]
    assert (tower.blocks[1].attn.qkv.bias[WIDTH:] == 0.5).all()
