"""Parts as data, and what importing them costs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from parts_rig import ATTENTION, DECODER, model_of
from torch import Tensor, nn

from quire_kernels import select
from quire_models import Decoder, LayerNorm, Rope
from quire_models.modules.projection import Projection
from quire_models.parts.changes import with_attention, with_blocks
from quire_models.parts.rope_config import DynamicNtk, LongRope, Yarn
from quire_models.step.forward_batch import KvShape
from quire_models.testing import ChunkSpec, ModelDriver, build


@pytest.mark.parametrize(
    "module",
    [
        "quire_models",
        "quire_models.loading.weight_names",
        "quire_models.loading.weight_names_encoders",
        *(
            f"quire_plugins.architectures.{f}"
            for f in [
                "bert",
                "modernbert",
                "gemma",
                "gpt2",
                "granite",
                "llama",
                "mistral",
                "olmo",
                "opt",
                "phi",
                "qwen",
            ]
        ),
        "quire_plugins.audio.qwen_audio",
    ],
)
def test_parts_and_plugins_import_no_torch(module: str) -> None:
    code = (
        f"import sys, {module} as m; list(getattr(m, 'quire_architectures', list)()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_the_package_that_need_torch_are_imported_when_used() -> None:
    import quire_models

    assert quire_models.Projection is Projection
    assert all(hasattr(quire_models, name) for name in quire_models.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = quire_models.nothing


def test_parts_are_plain_data() -> None:
    assert pickle.loads(pickle.dumps(DECODER)) == DECODER
    assert hash(DECODER) == hash(pickle.loads(pickle.dumps(DECODER)))


def test_a_decoder_says_what_each_block_keeps_of_a_token() -> None:
    assert DECODER.kv_shapes == (KvShape(2, 8), KvShape(2, 8))


def test_blocks_and_attentions_change_without_a_new_class() -> None:
    windows = with_attention(DECODER, window=3)
    assert {block.attn.window for block in windows.blocks} == {3}  # type: ignore[attr-defined]
    second = with_blocks(DECODER, lambda i, block: block if i else windows.blocks[0])
    assert second.blocks == (windows.blocks[0], DECODER.blocks[1])


def test_a_part_of_a_strangers_own_needs_no_change_here() -> None:
    class Doubling:
        attn = ATTENTION

        def build(self, width: int, builder: Any) -> nn.Module:
            return DoublingModule()

    class DoublingModule(nn.Module):
        def forward(self, x: Tensor, fwd: Any) -> Tensor:
            return 2 * x

    model = model_of(Decoder(20, 16, (Doubling(),) * 3, norm=None))
    [logits] = ModelDriver(model, model.part, [[3, 4]]).step([ChunkSpec(0, 2)])
    torch.testing.assert_close(logits, 8 * model.embed.weight[[3, 4]] @ model.head.weight.T)


def test_prompts_share_pages_unless_their_length_turns_keys_differently() -> None:
    def variants(rope: Rope) -> list[int]:
        decoder = with_attention(DECODER, rope=rope)
        return [decoder.kv_cache_variant(n) for n in (1, 16, 17, 40)]

    long_rope = LongRope(short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_len=16, factor=4.0)
    assert variants(Rope(8)) == [0, 0, 0, 0]
    assert not with_attention(DECODER, rope=Rope(8)).has_kv_cache_variants
    assert with_attention(DECODER, rope=Rope(8, scaling=long_rope)).has_kv_cache_variants
    assert variants(Rope(8, scaling=Yarn(factor=4.0, original_len=16))) == [0, 0, 0, 0]
    assert variants(Rope(8, scaling=long_rope)) == [0, 0, 1, 1]
    assert variants(Rope(8, scaling=DynamicNtk(factor=2.0, max_len=16))) == [0, 0, 17, 40]


LONG_ROPE = LongRope(short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_len=16, factor=4.0)


@dataclass(frozen=True)
class Latent:
    """An attention of a plugin, with rotary embeddings in fields of their own."""

    ropes: tuple[Rope, ...]
    turn: Rope | None = None

    @property
    def kv_shape(self) -> KvShape:
        return KvShape(1, 8)


@dataclass(frozen=True)
class Stepping(Latent):
    """One that says by itself what its keys depend on."""

    position_axes = 2

    def kv_cache_variant(self, prompt_len: int) -> int:
        return prompt_len // 20


def around(attn: Any) -> Decoder:
    return Decoder(20, 16, (replace(DECODER.blocks[0], attn=attn),), norm=None)  # type: ignore[type-var]


def test_every_attention_is_asked_how_it_turns_keys_and_by_how_many_axes() -> None:
    long_rope, longer = Rope(8, scaling=LONG_ROPE), Rope(8, scaling=replace(LONG_ROPE, original_len=30))
    for attn in (Latent((long_rope,)), Latent((), long_rope)):
        assert [around(attn).kv_cache_variant(n) for n in (1, 16, 17, 40)] == [0, 0, 1, 1]
    assert around(Latent((Rope(8, sections=(1, 1, 2)),))).position_axes == 3
    assert around(Stepping(())).position_axes == 2
    assert around(Stepping(())).has_kv_cache_variants
    assert [around(Stepping(())).kv_cache_variant(n) for n in (1, 20, 40)] == [0, 1, 2]
    several = [around(Latent((long_rope, longer))).kv_cache_variant(n) for n in (1, 17, 29, 40)]
    assert len(set(several)) == 3
    assert several[1] == several[2]


def test_layer_norm_without_weights_has_no_parameters() -> None:
    model = build(Decoder(20, 16, (), LayerNorm(affine=False)), select.reference())
    assert [name for name, _ in model.named_parameters()] == ["embed.weight", "head.weight"]
