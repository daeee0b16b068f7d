"""Filling a model with the tensors of a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parts_rig import ATTENTION, DECODER, NORM
from torch import Tensor

from quire.errors import CheckpointError
from quire_kernels import select
from quire_models import Block, Decoder, Expert, Moe, RMSNorm, softmax_router
from quire_models.loading import weight_names as names
from quire_models.loading.mapping import CheckpointLoader, ParameterSlice, parameter_slices
from quire_models.loading.weight_names import WeightsMapper
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.changes import with_blocks
from quire_models.testing import build, load_state_dict_into


def checkpoint(decoder: Decoder) -> dict[str, Tensor]:
    """A checkpoint of a small llama, q, k, v and gate, up apart."""
    torch.manual_seed(1)
    shapes = {"embed_tokens": (20, 16), "norm": (16,)}
    for i in range(len(decoder.blocks)):
        block = {
            "self_attn.q_proj": (32, 16),
            "self_attn.k_proj": (16, 16),
            "self_attn.v_proj": (16, 16),
            "self_attn.o_proj": (16, 32),
            "mlp.gate_proj": (24, 16),
            "mlp.up_proj": (24, 16),
            "mlp.down_proj": (16, 24),
            "input_layernorm": (16,),
            "post_attention_layernorm": (16,),
        }
        shapes |= {f"layers.{i}.{name}": shape for name, shape in block.items()}
    tensors = {f"model.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    return tensors | {"lm_head.weight": torch.randn(20, 16)}


def test_separate_tensors_fill_slices_of_fused_parameters() -> None:
    model, state = build(DECODER, select.reference()), checkpoint(DECODER)
    load_state_dict_into(model, DECODER, names.LLAMA, state)
    qkv = model.get_parameter("blocks.1.attn.qkv.weight")
    assert torch.equal(qkv[32:48], state["model.layers.1.self_attn.k_proj.weight"])
    assert torch.equal(
        model.get_parameter("blocks.0.mlp.gate_up.weight")[24:], state["model.layers.0.mlp.up_proj.weight"]
    )
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_ignored_tensors_and_the_copy_of_a_tied_head_are_not_wanted() -> None:
    tied = Decoder(20, 16, DECODER.blocks, NORM, tied=True)
    model = build(tied, select.reference())
    filling = CheckpointLoader(model, tied, names.LLAMA)
    assert not filling.needs("lm_head.weight")
    assert not filling.needs("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert filling.needs("model.norm.weight")
    load_state_dict_into(model, tied, names.LLAMA, checkpoint(tied))
    assert model.head.weight is model.embed.weight
    assert "head.weight" not in dict(model.named_parameters())


def broken(change: str) -> dict[str, Tensor]:
    state = checkpoint(DECODER)
    q = "model.layers.0.self_attn.q_proj.weight"
    if change == "missing":
        del state[q]
    elif change == "missing whole":
        del state["lm_head.weight"]
    elif change == "extra":
        state["model.layers.0.self_attn.q_proj.scale"] = torch.ones(1)
    elif change == "misshapen":
        state[q] = state[q][:-1]
    elif change == "twice":
        state["blocks.0.attn.q.weight"] = state[q]
    elif change == "fused and apart":
        state["model.layers.0.self_attn.qkv_proj.weight"] = torch.randn(64, 16)
    return state


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("missing", r"lacks tensors for blocks\.0\.attn\.q\.weight"),
        ("missing whole", r"lacks tensors for head\.weight"),
        ("extra", r"'model\.layers\.0\.self_attn\.q_proj\.scale' for which the model has no parameter"),
        (
            "misshapen",
            r"q_proj\.weight' of the checkpoint has shape \[31, 16\]; by config\.json it should be \[32, 16\]",
        ),
        ("twice", r"both 'model\.layers\.0\.self_attn\.q_proj\.weight' and 'blocks\.0\.attn\.q\.weight'"),
        ("fused and apart", r"both a fused tensor and its parts for 'blocks\.0\.attn\.qkv\.weight'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_name_of_the_tensor(change: str, sentence: str) -> None:
    model = build(DECODER, select.reference())
    with pytest.raises(CheckpointError, match=sentence):
        load_state_dict_into(model, DECODER, names.LLAMA, broken(change))


def test_transforms_see_our_names_and_the_decoder() -> None:
    def halve(tensor: Tensor, decoder: Decoder) -> Tensor:
        return tensor / decoder.width

    table = names.LLAMA | WeightsMapper(transforms=(("*.attn.o.weight", halve),))
    model, state = build(DECODER, select.reference()), checkpoint(DECODER)
    load_state_dict_into(model, DECODER, table, state)
    got = model.get_parameter("blocks.0.attn.o.weight")
    assert torch.equal(got, state["model.layers.0.self_attn.o_proj.weight"] / 16)


def test_places_name_wholes_and_pieces() -> None:
    moe = with_blocks(DECODER, lambda _, block: Block(ATTENTION, Moe(Expert(12), 3, softmax_router(2)), NORM))
    found = parameter_slices(build(moe, select.reference()))
    assert found["blocks.0.attn.qkv.weight"] == ParameterSlice("blocks.0.attn.qkv.weight")
    assert found["blocks.0.attn.v.weight"] == ParameterSlice("blocks.0.attn.qkv.weight", (slice(48, 64),))
    assert found["blocks.1.mlp.experts.2.up.weight"] == ParameterSlice(
        "blocks.1.mlp.experts.gate_up", (2, slice(12, None))
    )
    assert found["blocks.1.mlp.experts.2.down.weight"] == ParameterSlice("blocks.1.mlp.experts.down", (2,))


def test_a_norm_with_an_offset_keeps_small_weights_in_bfloat16() -> None:
    decoder = Decoder(20, 16, (), RMSNorm(offset=1.0))
    model = build(decoder, select.reference(), torch.bfloat16)
    state = {"model.embed_tokens.weight": torch.randn(20, 16), "model.norm.weight": torch.full((16,), 0.001)}
    load_state_dict_into(model, decoder, names.LLAMA, state | {"lm_head.weight": torch.randn(20, 16)})
    norm: Any = model.norm
    assert norm.scale.dtype == torch.float32
    torch.testing.assert_close(norm.scale, torch.full((16,), 1.001), atol=1e-5, rtol=0)


class PartsLinear:
    """A linear op that keeps the matrices that it was bound with."""

    takes_parts = True

    def __init__(self) -> None:
        self.bound: list[Any] = []

    def __call__(self, weight: Any, bias: Tensor | None, gated: bool = False) -> Any:
        self.bound.append(weight)
        whole = weight if isinstance(weight, Tensor) else torch.cat(list(weight))
        return SimpleNamespace(unpacked=whole.index_select, weight=whole.clone())


def loader_of(linear: PartsLinear, decoder: Decoder) -> tuple[Any, CheckpointLoader]:
    builder = ModuleBuilder(select.reference(), torch.float32, torch.device("cpu"), linear=linear, keep_weights=False)
    model = decoder.build(builder)
    return model, CheckpointLoader(model, decoder, names.LLAMA)


def test_parts_of_a_matrix_are_packed_where_they_are() -> None:
    linear, state = PartsLinear(), checkpoint(DECODER)
    model, loader = loader_of(linear, DECODER)
    q, k, v = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
    assert list(loader.put(v, state[v])) == []
    assert list(loader.put(q, state[q])) == []
    assert sorted(loader.put(k, state[k])) == sorted([q, k, v])
    assert [part.data_ptr() for part in linear.bound[0]] == [state[name].data_ptr() for name in (q, k, v)]
    assert not model.blocks[0].attn.qkv.weight.numel()
    for name, tensor in state.items():
        if name not in (q, k, v):
            loader.put(name, tensor)
    loader.finish()
    assert torch.equal(model.blocks[0].attn.qkv.multiply.weight, torch.cat([state[q], state[k], state[v]]))


def test_parts_in_another_data_type_are_copied() -> None:
    linear, state = PartsLinear(), checkpoint(DECODER)
    model, loader = loader_of(linear, DECODER)
    q, k, v = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
    state[k] = state[k].half()
    assert [list(loader.put(name, state[name])) for name in (q, k)] == [[], [k]]
    assert sorted(loader.put(v, state[v])) == [q, v]
    expected = torch.cat([state[q], state[k].float(), state[v]])
    assert torch.equal(model.blocks[0].attn.qkv.multiply.weight, expected)
