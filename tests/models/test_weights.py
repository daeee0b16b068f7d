import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from quire.errors import CheckpointError
from quire.hooks import registry
from quire_kernels import select
from quire_models import ModuleBuilder
from quire_models.loading import checkpoint, tensor_files as tensors, weight_names as names, weights

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
Q1 = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def llama(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def architecture(name, plugin):
    return registry.load([plugin]).by_hook("quire_architectures")[name]


def build(folder, dtype=torch.float32, device="cpu", name="LlamaForCausalLM", plugin="llama"):
    family = architecture(name, plugin)
    decoder = family.decoder(checkpoint.read_config(folder))
    return decoder.build(ModuleBuilder(select.reference(), dtype, torch.device(device))), decoder, family.names


def load(folder, load_format="auto", **where):
    model, decoder, table = build(folder, **where)
    if load_format == "dummy":
        weights.randomize(model)
    else:
        weights.load(model, decoder, table, tensors.find(folder, load_format))
    return model


def change(folder, edit):
    state = load_file(folder / "model.safetensors")
    edit(state)
    save_file(state, folder / "model.safetensors")


def test_every_tensor_arrives_where_it_belongs(llama):
    state = load_file(llama / "model.safetensors")
    found = dict(load(llama).named_parameters())
    parts = [state[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv"]
    assert torch.equal(found["blocks.1.attn.qkv.weight"], torch.cat(parts))
    gate, up = (state[f"model.layers.0.mlp.{x}_proj.weight"] for x in ("gate", "up"))
    assert torch.equal(found["blocks.0.mlp.gate_up.weight"], torch.cat([gate, up]))
    assert torch.equal(found["head.weight"], state["lm_head.weight"])
    assert torch.equal(found["norm.weight"], state["model.norm.weight"])


@pytest.mark.parametrize("layout", ["sharded", "bin"])
def test_shards_and_pickles_give_the_same_model(llama, tmp_path, layout):
    expected = load(llama).state_dict()
    state = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    if layout == "bin":
        torch.save(state, llama / "pytorch_model.bin")
    else:
        keys = sorted(state)
        halves = {"model-1.safetensors": keys[::2], "model-2.safetensors": keys[1::2]}
        for file, half in halves.items():
            save_file({key: state[key] for key in half}, llama / file)
        placed = {key: file for file, half in halves.items() for key in half}
        (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    found = load(llama).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_converted_to_the_dtype_of_the_model(llama, dtype):
    exact = load(llama).state_dict()
    converted = load(llama, dtype=dtype).state_dict()
    assert all(torch.equal(converted[name], exact[name].to(dtype)) for name in exact)


def test_a_tied_model_needs_no_head_and_ignores_one(tmp_path):
    LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    without = load(tmp_path).state_dict()
    change(tmp_path, lambda state: state.update({"lm_head.weight": torch.zeros(128, 32)}))
    again = load(tmp_path).state_dict()
    assert without.keys() == again.keys()
    assert all(torch.equal(without[name], again[name]) for name in without)


def test_a_missing_tensor_is_named_as_the_checkpoint_would(llama):
    change(llama, lambda state: state.pop(Q1))
    with pytest.raises(CheckpointError, match=f"lacks '{Q1}'"):
        load(llama)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_outside_the_blocks_is_named(llama, name):
    change(llama, lambda state: state.pop(name))
    with pytest.raises(CheckpointError, match=f"lacks '{name}'"):
        load(llama)


def test_an_extra_tensor_is_named(llama):
    change(llama, lambda state: state.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}))
    with pytest.raises(CheckpointError, match=r"'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        load(llama)


def test_a_misshapen_tensor_is_named_with_both_shapes(llama):
    change(llama, lambda state: state.update({Q1: torch.zeros(32, 31)}))
    with pytest.raises(CheckpointError, match=rf"'{Q1}' has shape \[32, 31\]; by config.json it should be \[32, 32\]"):
        load(llama)


def test_of_many_problems_five_are_named_and_the_rest_counted(llama):
    change(llama, lambda state: [state.pop(name) for name in list(state) if "proj" in name])
    with pytest.raises(CheckpointError) as caught:
        load(llama)
    assert caught.value.message.count("lacks") == weights.MAX_NAMED
    assert "more such problems" in caught.value.message


def test_rotary_tables_of_old_checkpoints_are_no_extra_tensors(llama):
    change(llama, lambda state: state.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    load(llama)


def test_problems_are_found_on_the_meta_device_before_memory_is_taken(llama):
    change(llama, lambda state: state.update({Q1: torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=Q1):
        weights.check(*build(llama, device="meta"), tensors.find(llama))


def test_transposed_and_fused_checkpoints_are_checked_by_the_shape_they_end_up_with(tmp_path):
    config = GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=96)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    load(tmp_path, name="GPT2LMHeadModel", plugin="gpt2")
    change(tmp_path, lambda state: state.update({"transformer.h.0.attn.c_attn.weight": torch.zeros(96, 32)}))
    with pytest.raises(CheckpointError, match=r"c_attn.weight' has shape \[32, 96\]; by config.json .* \[96, 32\]"):
        load(tmp_path, name="GPT2LMHeadModel", plugin="gpt2")


def test_one_missing_expert_is_named(tmp_path):
    config = MixtralConfig(**SIZES, num_local_experts=4)
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    expert = next(name for name in load_file(tmp_path / "model.safetensors") if "experts" in name)
    change(tmp_path, lambda state: state.pop(expert))
    with pytest.raises(CheckpointError, match=re.escape(expert)):
        load(tmp_path, name="MixtralForCausalLM", plugin="mistral")


def test_dummy_weights_are_the_same_each_time_and_need_no_files(llama):
    (llama / "model.safetensors").unlink()
    first, second = (load(llama, "dummy").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.isfinite(tensor).all() and tensor.std() > 0 for tensor in first.values())


def test_a_name_that_the_table_cannot_reverse_is_given_as_ours():
    assert weights._theirs(names.LLAMA, "blocks.0.attn.q.weight") == "'model.layers.0.self_attn.q_proj.weight'"
    assert weights._theirs(names.WeightsMapper((("p", "q"),)), "p.weight") == "a tensor for 'p.weight'"
    assert weights._theirs(names.WeightsMapper(), "norm.weight") == "'norm.weight'"
