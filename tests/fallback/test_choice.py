"""`--model-impl`: plugin or fallback; and what the fallback refuses, with a reason, before it allocates anything."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from quire.engine.architectures.choice import choose_architecture
from quire.engine.loading.load import load_model
from quire.errors import CheckpointError, ConfigError, UnknownArchitecture
from quire.hooks import registry
from quire.records import ArchitectureQuery, Registry
from quire.settings.model_config import ModelConfig
from quire_models.loading.checkpoint import read_config
from quire_testing.tiny import tiny_llama, tiny_model


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None)


def config_of(folder: Path, architecture: str, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **settings}))
    return folder


def query(folder: Path, trusted: bool = False) -> ArchitectureQuery:
    config = read_config(folder)
    return ArchitectureQuery(tuple(config.architectures), config, folder, trusted)


def test_auto_prefers_the_plugin_and_a_name_forces_the_fallback(tmp_path: Path, plugins: Registry) -> None:
    asked = query(tiny_llama(tmp_path))
    for setting, plugin in (("auto", "llama"), ("quire", "llama"), ("vllm", "llama"), ("transformers", "transformers")):
        chosen = choose_architecture(setting, asked, plugins)
        assert (chosen.plugin, chosen.is_fallback) == (plugin, plugin == "transformers")


def test_auto_falls_back_and_quire_does_not(tmp_path: Path, plugins: Registry) -> None:
    asked = query(tiny_llama(tmp_path))
    without = Registry(
        records={**plugins.records, "quire_architectures": {}}, origin=plugins.origin, plugins=plugins.plugins
    )
    assert choose_architecture("auto", asked, without).is_fallback
    with pytest.raises(UnknownArchitecture, match=r"No loaded plugin can build LlamaForCausalLM\.$"):
        choose_architecture("quire", asked, without)


def test_an_unknown_setting_names_the_fallbacks(tmp_path: Path, plugins: Registry) -> None:
    with pytest.raises(ConfigError, match=r"--model-impl sglang: .* auto, quire, transformers"):
        choose_architecture("sglang", query(tiny_llama(tmp_path)), plugins)


def test_an_unknown_architecture_says_what_is_registered_and_what_the_fallback_says(
    tmp_path: Path, plugins: Registry
) -> None:
    folder = config_of(tmp_path, "LlamaForCausalML")
    with pytest.raises(UnknownArchitecture) as caught:
        load_model(ModelConfig(model=str(folder)), plugins)
    message = caught.value.message
    assert "No loaded plugin can build LlamaForCausalML." in message
    assert "has no model LlamaForCausalML" in message
    assert "architectures are registered, the nearest are LlamaForCausalLM" in message


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
SMALL = {"num_hidden_layers": 1, "num_blocks": 1}


@pytest.mark.parametrize(
    ("architecture", "settings", "reason"),
    [
        ("RwkvForCausalLM", {"model_type": "rwkv"}, "keep a state .* not in transformers' cache class"),
        ("xLSTMForCausalLM", {"model_type": "xlstm", **SMALL}, "keep a state .* not in transformers' cache class"),
        ("T5ForConditionalGeneration", {"model_type": "t5"}, "encoder-decoder"),
        ("OpenAIGPTLMHeadModel", {"model_type": "openai-gpt"}, "do not use transformers' interface for attention"),
        ("MptForCausalLM", {"model_type": "mpt"}, "takes no positions"),
        (
            "Gemma3ForCausalLM",
            {
                "model_type": "gemma3_text",
                "num_hidden_layers": 1,
                "rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": DYNAMIC},
            },
            r"rotary embedding .* depends on the length",
        ),
    ],
)
def test_what_cannot_run_over_pages_is_refused_with_a_reason(
    architecture: str, settings: dict[str, Any], reason: str, tmp_path: Path, plugins: Registry
) -> None:
    folder = config_of(tmp_path, architecture, **settings)
    with pytest.raises(CheckpointError, match=rf"transformers has {architecture}, but .*{reason}"):
        choose_architecture("transformers", query(folder), plugins)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_of_a_checkpoint_runs_only_if_it_is_trusted(
    tmp_path: Path, plugins: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tiny_model(tmp_path / "model", "LlamaForCausalLM")
    raw = json.loads((folder / "config.json").read_text())
    mapped = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    raw |= {"architectures": ["OwnForCausalLM"], "model_type": "own_llama", "auto_map": mapped}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "own_code.py").write_text(CODE)
    with pytest.raises(UnknownArchitecture, match=r"OwnForCausalLM is Python code .* only with --trust-remote-code"):
        load_model(ModelConfig(model=str(folder)), plugins)
    assert not (tmp_path / "modules").exists()
    with caplog.at_level(logging.WARNING):
        loaded = load_model(ModelConfig(model=str(folder), trust_remote_code=True, device="cpu"), plugins)
    assert loaded.info.architecture == "OwnForCausalLM"
    assert "running Python code of the checkpoint" in caplog.text
