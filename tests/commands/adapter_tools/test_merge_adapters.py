"""`platform adapters merge` against peft's merge_and_unload, and against the server's own answers."""

import json
import warnings
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from ia3_rig import CASES, World
from lora_rig import Base, Ours, random_seqs
from safetensors.torch import load_file

from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.hooks import registry
from quire.isolation.plugin_calls import InProcessCalls
from quire_adapter_tools.base_model import read_base
from quire_adapter_tools.merging import merge
from quire_adapter_tools.stored_weights import StoredWeights

load = cache(registry.load)

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ALL}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("models") / "llama", "LlamaForCausalLM", attention_bias=True)


def merged(base, adapter, out):
    done = merge(StoredWeights(read_base(str(base.folder), load())), adapter, out, InProcessCalls())
    return done, load_file(out / "model.safetensors")


def by_peft(base, adapter):
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PeftModel.from_pretrained(base.reference(), adapter).merge_and_unload()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
        {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
        {"bias": "lora_only"},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {"modules_to_save": ["lm_head"]},
    ],
    ids=lambda variant: "-".join(variant) or "plain",
)
def test_the_merged_weights_are_those_of_peft(llama, variant, tmp_path):
    adapter = llama.adapter("-".join(["as", *variant]) + str(len(str(variant))), **{**LORA, **variant})
    done, ours = merged(llama, adapter, tmp_path / "out")
    theirs, before = by_peft(llama, adapter), load_file(llama.folder / "model.safetensors")
    assert ours.keys() == before.keys()
    changed = 0
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=2e-6, atol=2e-6, msg=name)
        changed += not torch.equal(tensor, before[name])
    assert 0 < changed <= done.changed


def test_bfloat16_weights_are_rounded_as_peft_rounds_them(tmp_path):
    base = Base(tmp_path / "base", "LlamaForCausalLM")
    reference = base.reference
    base.reference = lambda: reference().to(torch.bfloat16)
    base.reference().save_pretrained(base.folder)
    adapter = base.adapter("lora", **LORA)
    _, ours = merged(base, adapter, tmp_path / "out")
    theirs = by_peft(base, adapter)
    differ = sum(int((tensor != theirs[name]).sum()) for name, tensor in ours.items())
    assert all(tensor.dtype == torch.bfloat16 for tensor in ours.values())
    assert differ <= sum(tensor.numel() for tensor in ours.values()) // 1000


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("GPT2LMHeadModel", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
        ("Phi3ForCausalLM", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
        ("Gemma2ForCausalLM", {"target_modules": ["embed_tokens", "q_proj"]}),
        ("MixtralForCausalLM", {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj"]}),
    ],
)
def test_a_merged_model_answers_as_the_base_with_the_adapter(architecture, config, tmp_path):
    more = {"pad_token_id": 0} if architecture == "Phi3ForCausalLM" else {}
    base = Base(tmp_path / "base", architecture, **more)
    adapter = base.adapter("lora", r=4, lora_alpha=8, **config)
    done, _ = merged(base, adapter, tmp_path / "out")
    seqs, here = random_seqs(2), Ours(base)
    expected = here.logits(seqs, [{here.lora.load("a", adapter): 1.0}] * 2)
    base.folder = tmp_path / "out"
    for ours, theirs in zip(Ours(base).logits(seqs, [{}, {}]), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    tied = json.loads((tmp_path / "out" / "config.json").read_text()).get("tie_word_embeddings", True)
    assert done.unties == (architecture == "Gemma2ForCausalLM")
    assert not (done.unties and tied)


@pytest.mark.filterwarnings("ignore")  # of peft
@pytest.mark.parametrize("case", ["llama_inputs", "gpt2"])
def test_scaling_vectors_are_merged_as_peft_merges_them(case, tmp_path):
    world = World(tmp_path, CASES[case])
    theirs = dict(world.models["a"].merge_and_unload().state_dict())
    _, ours = merged(SimpleNamespace(folder=world.folder), world.paths["a"], tmp_path / "out")
    before = load_file(world.folder / "model.safetensors")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=2e-6, atol=2e-6, msg=name)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in ours.items())


def test_what_cannot_be_merged_is_refused_and_leaves_no_folder(llama, tmp_path):
    from quire_testing.tiny import tiny_llama

    adapter = llama.adapter("bias", r=2, target_modules=["gate_proj"], lora_bias=True)
    with pytest.raises(CheckpointError, match="adds a bias to 'blocks"):
        merged(llama, adapter, tmp_path / "out")
    small = tiny_llama(tmp_path / "small", hidden_size=32, head_dim=8)
    with pytest.raises(BadRequest, match="has shape"):
        merge(StoredWeights(read_base(str(small), load())), adapter, tmp_path / "out", InProcessCalls())
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    config = adapter / "adapter_config.json"
    config.write_text(config.read_text().replace('"LORA"', '"LOHA"'))
    with pytest.raises(ConfigError, match="Adapters of the kind LOHA are not merged"):
        merged(llama, adapter, tmp_path / "other")
    good = llama.adapter("good", r=2, target_modules=["q_proj"])
    with pytest.raises(ConfigError, match="is not an empty folder"):
        merged(llama, good, tmp_path / "out")
