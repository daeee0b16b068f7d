"""Tiny models, and the check of architectures for plugin authors: it says yes and no, for the right reason."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plugin_site import PluginSite
from transformers import AutoModelForCausalLM, AutoTokenizer

import quire_testing
from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.records import Architecture
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading import weight_names as names
from quire_testing import byte_tokenizer, check_architecture, tiny_llama, tiny_model
from quire_testing.tiny import reference_model, save

# --- tiny models -----------------------------------------------------------------------------------------


def test_what_is_exported_is_importable_and_nothing_heavy_comes_with_the_package() -> None:
    assert all(callable(getattr(quire_testing, name)) for name in quire_testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'check_everything'"):
        quire_testing.check_everything  # noqa: B018
    code = "import quire_testing, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_byte_tokenizer_is_one_id_per_byte_and_has_a_chat_template(tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(byte_tokenizer(tmp_path))
    text = "Grüße, 世界! \x00\n"
    assert theirs.encode(text) == list(text.encode()) == list(Tokenizer.load(tmp_path).encode(text))
    assert theirs.decode(list(text.encode())) == text
    shown = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert shown == "<|user|>hi<|end|><|assistant|>"
    assert theirs.encode("<|end|>") == [theirs.eos_token_id] == [256]


def test_a_tiny_model_is_a_folder_that_transformers_reads(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path, num_hidden_layers=3))
    assert model.config.num_hidden_layers == 3
    assert model.config.eos_token_id == 256


def test_a_tiny_model_depends_on_its_seed_alone(tmp_path: Path) -> None:
    files = [tiny_llama(tmp_path / str(i), seed=seed) / "model.safetensors" for i, seed in enumerate((1, 1, 2))]
    one, again, other = (file.read_bytes() for file in files)
    assert one == again != other


def test_an_architecture_that_transformers_lacks_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no 'NobodysForCausalLM'"):
        tiny_model(tmp_path, "NobodysForCausalLM")


# --- architectures ---------------------------------------------------------------------------------------


def llama() -> Architecture:
    return load(["llama"]).by_hook("quire_architectures")["LlamaForCausalLM"]


def test_a_right_architecture_passes_by_name_and_as_a_record() -> None:
    check_architecture("LlamaForCausalLM", plugin="llama", num_key_value_heads=4)
    check_architecture(llama(), tie_word_embeddings=True)


def test_an_unknown_architecture_says_where_it_was_sought() -> None:
    sought = r"has the architecture 'LlamaForCausalLM'. Searched: adapter-tools, awq, .*, policies, .*, zmq-.*, tools"
    with pytest.raises(AssertionError, match=sought):
        check_architecture("LlamaForCausalLM", plugin="tools")


def test_a_wrong_epsilon_scale_or_order_is_noticed() -> None:
    def wrong(c):
        right = llama().decoder(c)
        return replace(right, logit_scale=1.01)

    with pytest.raises(AssertionError, match="differ from transformers' by up to"):
        check_architecture(replace(llama(), decoder=wrong))


def test_a_name_table_that_forgets_a_tensor_is_noticed() -> None:
    table = names.WeightsMapper(tuple(pair for pair in names.LLAMA.renames if pair[0] != "o_proj"))
    with pytest.raises(Exception, match="o_proj"):
        check_architecture(replace(llama(), names=table))


def test_an_architecture_whose_logits_depend_on_the_batch_is_noticed() -> None:
    class Nosy(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, fwd):
            return self.inner(x, fwd) + (1e-3 if len(fwd.contexts) == 4 else 0)

    class NosyBlock:
        def __init__(self, block):
            self.block, self.attn = block, block.attn

        def build(self, width, builder):
            return Nosy(self.block.build(width, builder))

    def decoder(c):
        right = llama().decoder(c)
        return replace(right, blocks=tuple(map(NosyBlock, right.blocks)))

    table = names.LLAMA | names.WeightsMapper(
        (("model.layers.0", "blocks.0.inner"), ("model.layers.1", "blocks.1.inner"))
    )
    with pytest.raises(AssertionError, match=r"logits (change when|depend on)"):
        check_architecture(replace(llama(), decoder=decoder, names=table), tolerance=1.0)


# --- what transformers lacks, or has otherwise -----------------------------------------------------------


def test_a_model_outside_transformers_is_compared_with_a_reference_of_the_authors() -> None:
    def reference(folder: Path) -> object:
        model = reference_model("LlamaForCausalLM", seed=3)
        save(model, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OutsideForCausalLM"]}))
        return lambda ids: model(ids).logits[0] * factor

    record, factor = replace(llama(), name="OutsideForCausalLM"), 1.0
    check_architecture(record, reference=reference)
    factor = 1.01
    with pytest.raises(AssertionError, match="differ from the reference's"):
        check_architecture(record, reference=reference)


def test_the_attention_of_the_reference_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(
        "quire_testing.architecture.reference_model",
        lambda *args, **more: used.append(args[2]) or reference_model(*args, **more),
    )
    check_architecture(llama(), attention="sdpa")
    assert used == ["sdpa"]


def test_sizes_that_a_config_works_out_of_others_are_left_to_it() -> None:
    assert type(reference_model("FalconForCausalLM").config).head_dim.fset is None


def test_a_config_without_a_length_needs_no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_models.loading.checkpoint.max_length", lambda config: None)
    check_architecture(llama())


ARCHITECTURE_WITH_OP = """
from quire_plugins.architectures.llama import decoder
from quire_models.loading.weight_names import LLAMA

def load():
    raise OSError("asked for")

@hookimpl
def quire_architectures(): yield Architecture("LlamaForCausalLM", decoder, LLAMA, needs_ops=("mine",))

@hookimpl
def quire_ops(): yield OpImpl("mine", "act", lambda query: None, load)
"""


def test_operations_of_the_architectures_plugin_are_loaded_too(site: PluginSite) -> None:
    site.add("mine", ARCHITECTURE_WITH_OP)
    with pytest.raises(ConfigError, match="'mine', which cannot be used: it could not be loaded: OSError: asked for"):
        check_architecture("LlamaForCausalLM", plugin="mine")
    record = load(["mine"]).by_hook("quire_architectures")["LlamaForCausalLM"]
    with pytest.raises(ConfigError, match="OSError: asked for"):
        check_architecture(record, plugin="mine")
