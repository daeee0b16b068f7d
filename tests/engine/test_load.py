import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine.loading import load as loading
from quire.engine.loading.build_module import available_bytes
from quire.engine.loading.load import load_model
from quire.errors import CheckpointError, ConfigError, PluginError, UnknownArchitecture
from quire.hooks import registry
from quire.records import Architecture, Registry
from quire.settings.model_config import ModelConfig


@pytest.fixture(scope="module")
def plugins():
    return registry.load(["llama"])


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def edit(folder, name="config.json", **changes):
    path = folder / name
    raw = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**raw, **changes}))


def test_a_folder_becomes_a_model_with_its_facts(folder, plugins):
    edit(folder, "generation_config.json", eos_token_id=[3, 5], temperature=0.7)
    config = ModelConfig(model=str(folder), served_model_name=("main", "other"), max_model_len=64, device="cpu")
    loaded = load_model(config, plugins)
    info = loaded.info
    assert (info.name, info.aliases, info.root, info.folder) == ("main", ("other",), str(folder), str(folder))
    assert (info.architecture, info.dtype, info.device) == ("LlamaForCausalLM", "float32", "cpu")
    assert (info.max_model_len, info.vocab_size, info.num_pages, info.page_size) == (64, 128, 0, 16)
    assert info.num_parameters == sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    assert info.eos_ids == loaded.eos_ids == (3, 5, 2)
    assert info.sampling_defaults == {"temperature": 0.7}
    assert loaded.config.hidden_size == 32
    assert not loaded.module.training
    assert {choice.op for choice in loaded.ops.report} >= {"paged_attention", "linear"}


def test_without_a_served_name_the_model_is_called_what_the_user_called_it(folder, plugins):
    info = load_model(ModelConfig(model=str(folder)), plugins).info
    assert (info.name, info.aliases, info.max_model_len) == (str(folder), (), 96)


def test_an_unknown_architecture_is_named_and_the_error_keeps_it_for_advice(folder, plugins):
    edit(folder, architectures=["MysteryForCausalLM"])
    with pytest.raises(UnknownArchitecture, match="No loaded plugin can build MysteryForCausalLM") as caught:
        load_model(ModelConfig(model=str(folder)), plugins)
    assert caught.value.param == "MysteryForCausalLM"


def test_the_first_architecture_that_is_known_is_taken(folder, plugins):
    edit(folder, architectures=["MysteryForCausalLM", "LlamaForCausalLM"])
    assert load_model(ModelConfig(model=str(folder)), plugins).info.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("wanted", "of_checkpoint", "device", "dtype"),
    [
        ("auto", "float32", "cpu", torch.float32),
        ("auto", "float32", "cuda", torch.bfloat16),
        ("auto", None, "cpu", torch.float32),
        ("auto", "float16", "cuda", torch.float16),
        ("auto", "bfloat16", "cpu", torch.bfloat16),
        ("auto", "float64", "cpu", torch.float32),
        ("half", "float32", "cpu", torch.float16),
        ("float", "bfloat16", "cuda", torch.float32),
        ("bfloat16", "float8_e4m3fn", "cpu", torch.bfloat16),
    ],
)
def test_the_dtype_follows_the_setting_the_checkpoint_and_the_device(wanted, of_checkpoint, device, dtype):
    assert loading.choose_dtype(wanted, of_checkpoint, torch.device(device)) == dtype


def test_a_dtype_that_cannot_be_run_is_refused():
    with pytest.raises(CheckpointError, match="float8_e4m3fn cannot be run"):
        loading.choose_dtype("auto", "float8_e4m3fn", torch.device("cpu"))


def test_the_dtype_setting_reaches_the_weights(folder, plugins):
    loaded = load_model(ModelConfig(model=str(folder), dtype="bfloat16", device="cpu"), plugins)
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.bfloat16}
    assert (loaded.info.dtype, loaded.kv_dtype) == ("bfloat16", torch.bfloat16)


def test_a_length_beyond_the_model_is_refused_with_the_limit(folder, plugins):
    with pytest.raises(ConfigError, match="at most 96 for this model, got 97"):
        load_model(ModelConfig(model=str(folder), max_model_len=97), plugins)


def test_a_length_must_come_from_somewhere():
    assert loading.choose_length(5, None) == 5
    with pytest.raises(ConfigError, match="set --max-model-len"):
        loading.choose_length(None, None)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.choose_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="--device cuda"):
        loading.choose_device("cuda")


def test_a_gpu_is_taken_unless_the_cpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loading.choose_device("auto") == loading.choose_device("cuda") == torch.device("cuda:0")
    assert loading.choose_device("cpu") == torch.device("cpu")


def test_overrides_win_over_the_models_sampling_defaults():
    def defaults(**settings):
        return loading.choose_defaults(ModelConfig(**settings), {"temperature": 0.7, "top_k": 9})

    assert defaults() == {"temperature": 0.7, "top_k": 9}
    assert defaults(generation_config="none") == {}
    override = {"temperature": 0.1, "max_new_tokens": 7}
    assert defaults(override_generation_config=override) == {"temperature": 0.1, "top_k": 9, "max_tokens": 7}
    with pytest.raises(ConfigError, match="cannot set best_colour"):
        defaults(override_generation_config={"best_colour": 1})
    with pytest.raises(ConfigError, match="temperature"):
        defaults(override_generation_config={"temperature": -1})


def test_quantized_checkpoints_are_refused_by_name(folder, plugins):
    edit(folder, quantization_config={"quant_method": "quip", "bits": 4})
    with pytest.raises(CheckpointError, match="quantized with quip, which no loaded plugin reads"):
        load_model(ModelConfig(model=str(folder)), plugins)


def test_weights_larger_than_memory_are_refused_before_they_are_allocated(folder, plugins):
    with pytest.raises(CheckpointError, match=r"only 0\.0 GiB of memory are available"):
        load_model(ModelConfig(model=str(folder)), plugins, max_bytes=1000)


def test_an_absurd_model_of_random_weights_is_refused_before_it_is_allocated(folder, plugins):
    edit(folder, hidden_size=2**17, intermediate_size=2**21, num_hidden_layers=128, vocab_size=2**23)
    edit(folder, num_attention_heads=1024, num_key_value_heads=1024, head_dim=128)
    with pytest.raises(CheckpointError, match="the weights need"):
        load_model(ModelConfig(model=str(folder), load_format="dummy"), plugins)


def test_a_config_that_does_not_fit_its_weights_is_refused_before_they_are_allocated(folder, plugins):
    edit(folder, hidden_size=2**16, head_dim=8)
    with pytest.raises(CheckpointError, match="has shape"):
        load_model(ModelConfig(model=str(folder)), plugins)


def test_a_plugin_that_fails_on_a_config_is_named(folder):
    broken = Architecture(name="LlamaForCausalLM", decoder=lambda config: config.no_such_field, names=None)
    hook = "quire_architectures"
    faulty = Registry(records={hook: {broken.name: broken}}, origin={(hook, broken.name): "mine"})
    with pytest.raises(PluginError, match="'mine' could not make a decoder"):
        load_model(ModelConfig(model=str(folder)), faulty)


def test_errors_about_weights_reach_the_user(folder, plugins):
    state = load_file(folder / "model.safetensors")
    state["surplus"] = torch.zeros(2)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="'surplus'"):
        load_model(ModelConfig(model=str(folder)), plugins)


def test_dummy_weights_need_no_weight_files(folder, plugins, caplog):
    (folder / "model.safetensors").unlink()
    with caplog.at_level(logging.WARNING):
        loaded = load_model(ModelConfig(model=str(folder), load_format="dummy"), plugins)
    assert all(torch.isfinite(parameter).all() for parameter in loaded.module.parameters())


def test_free_memory_is_known_here():
    assert available_bytes(torch.device("cpu")) > 1 << 20
