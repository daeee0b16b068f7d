"""Adapters of a model whose fused queries, keys and values the checkpoint has head by head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ia3_rig import write_adapter
from lora_rig import Base, Ours, random_seqs

from quire.records import Architecture, Context, Registry
from quire_adapters.ia3_runtime import Ia3Runtime
from quire_models import Attention, Decoder, LayerNorm, Mlp, ParallelBlock, Rope
from quire_models.loading import weight_names as names
from quire_testing import check_architecture

SETTINGS = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2}


def decoder(c: Any) -> Decoder:
    heads, size, norm = c.num_attention_heads, c.hidden_size // c.num_attention_heads, LayerNorm(c.layer_norm_eps)
    attention = Attention(heads, heads, size, Rope.from_config(c, size), qkv_bias=True, out_bias=True)
    block = ParallelBlock(attention, Mlp(c.intermediate_size, "gelu"), norm, norms=2)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm)


NEOX = names.WeightsMapper(
    (
        ("gpt_neox.embed_in", "embed"),
        ("gpt_neox.layers", "blocks"),
        ("gpt_neox.final_layer_norm", "norm"),
        ("embed_out", "head"),
        ("input_layernorm", "attn_in"),
        ("post_attention_layernorm", "mlp_in"),
        ("attention.query_key_value", "attn.qkv"),
        ("attention.dense", "attn.o"),
        ("mlp.dense_h_to_4h", "mlp.up"),
        ("mlp.dense_4h_to_h", "mlp.down"),
    ),
    transforms=(("*.attn.qkv.*", names.BY_HEAD),),
    ignored=names.ROTARY_TABLES,
)
RECORD = Architecture("GPTNeoXForCausalLM", decoder, NEOX)
REGISTRY = Registry(records={"quire_architectures": {RECORD.name: RECORD}})


def test_the_order_of_rows_is_undone_at_load() -> None:
    check_architecture(RECORD, **SETTINGS)


def test_grouped_heads_are_undone_too() -> None:
    part = Decoder(8, 8, (ParallelBlock(Attention(4, 2, 1), Mlp(8), LayerNorm()),), None)
    theirs = torch.tensor([[0, 1, 10, 20], [2, 3, 11, 21]]).flatten()  # two groups: two queries, a key, a value each
    assert names.BY_HEAD(theirs, part).tolist() == [0, 1, 2, 3, 10, 11, 20, 21]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("neox") / "neox", RECORD.name, **SETTINGS)


@pytest.mark.parametrize("more", [{}, {"use_dora": True}, {"bias": "lora_only"}, {"lora_bias": True}], ids=str)
def test_adapters_follow_the_order_of_rows(base: Base, more: dict[str, Any]) -> None:
    folder = base.adapter(f"a{len(str(more))}", like=0.7, r=4, target_modules=["query_key_value", "dense"], **more)
    ours, seqs = Ours(base, found=REGISTRY), random_seqs(2)
    adapter = ours.lora.load("a", folder)
    found = ours.logits(seqs, [{adapter: 1.0}, {}])
    torch.testing.assert_close(found[0], base.oracle(folder, seqs[:1])[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1], base.oracle(None, seqs[1:])[0], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_vectors_of_outputs_follow_it_too(base: Base) -> None:
    folder = base.folder.parent / "ia3"
    theirs = write_adapter(folder, (RECORD.name, ["query_key_value"], [], SETTINGS), seed=1)
    ours: Any = Ours(base, found=REGISTRY)
    ours.lora = Ia3Runtime(Context(names=ours.loaded.names, max_slots=2))
    ours.lora.attach(ours.loaded.module)
    (seq,) = random_seqs(1)
    (found,) = ours.logits([seq], [{ours.lora.load("a", folder): 1.0}])
    with torch.inference_mode():
        torch.testing.assert_close(found, theirs(torch.tensor([seq])).logits[0], rtol=0, atol=1e-4)
