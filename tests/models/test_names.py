"""Name tables: what a checkpoint calls a tensor and what we do."""

from __future__ import annotations

import pytest

from quire_models.loading import weight_names as names
from quire_models.loading.weight_names import WeightsMapper


@pytest.mark.parametrize(
    ("table", "theirs", "ours"),
    [
        (names.LLAMA, "model.layers.11.self_attn.q_proj.weight", "blocks.11.attn.q.weight"),
        (names.LLAMA, "model.layers.1.mlp.gate_up_proj.weight", "blocks.1.mlp.gate_up.weight"),
        (names.LLAMA, "model.layers.1.post_attention_layernorm.weight", "blocks.1.mlp_in.weight"),
        (names.LLAMA, "model.layers.3.self_attn.v_proj", "blocks.3.attn.v"),
        (
            names.LLAMA | names.PRE_AND_POST_NORM,
            "model.layers.1.post_attention_layernorm.weight",
            "blocks.1.attn_out.weight",
        ),
        (names.LLAMA | names.MOE, "model.layers.1.mlp.gate.weight", "blocks.1.mlp.router.weight"),
        (
            names.LLAMA | names.MOE,
            "model.layers.1.mlp.experts.7.up_proj.weight",
            "blocks.1.mlp.experts.7.up.weight",
        ),
        (names.LLAMA | names.MOE, "model.layers.1.mlp.experts.gate_up_proj", "blocks.1.mlp.experts.gate_up"),
        (
            names.LLAMA | names.MIXTRAL,
            "model.layers.0.block_sparse_moe.experts.3.w2.weight",
            "blocks.0.mlp.experts.3.down.weight",
        ),
        (names.GPT2, "transformer.h.2.attn.c_proj.weight", "blocks.2.attn.o.weight"),
        (names.GPT2, "h.2.mlp.c_proj.bias", "blocks.2.mlp.down.bias"),
        (names.OPT, "model.decoder.final_layer_norm.bias", "norm.bias"),
        (names.OPT, "decoder.layers.0.final_layer_norm.bias", "blocks.0.mlp_in.bias"),
        (WeightsMapper(), "anything.at.all", "anything.at.all"),
    ],
)
def test_checkpoint_names_become_ours(table: WeightsMapper, theirs: str, ours: str) -> None:
    assert table.rename(theirs) == ours


def test_only_whole_segments_are_renamed() -> None:
    table = WeightsMapper((("attn", "a"), ("attn.o_proj", "o")))
    assert table.rename("x.attn.o_proj.attn_bias.my_attn.attn") == "x.o.attn_bias.my_attn.a"


def test_the_right_table_wins_where_two_disagree() -> None:
    both = WeightsMapper((("a", "1"), ("b", "2"))) | WeightsMapper((("a", "3"),), ignored=("*.mask",))
    assert both.rename("a.b") == "3.2"
    assert both.ignores("x.mask")
    assert not both.ignores("x.mask.weight")


def test_a_table_moves_under_the_prefix_of_a_larger_checkpoint() -> None:
    table = names.LLAMA.under("language_model", becomes="text")
    assert table.rename("language_model.model.layers.0.self_attn.q_proj.weight") == "text.blocks.0.attn.q.weight"
    assert table.rename("language_model.lm_head.weight") == "text.head.weight"
    assert table.rename("vision_tower.model.layers.0.weight") == "vision_tower.model.layers.0.weight"


def test_a_table_serves_checkpoints_with_a_prefix_and_without_it() -> None:
    table = WeightsMapper((("visual", "tower"), ("norm1", "attn_in"))).and_under("model")
    for theirs in ("visual.norm1", "model.visual.norm1"):
        assert table.rename(theirs) == "tower.attn_in"
