"""Settings of models where no model is named and the demos are served: they hold as they do for named models."""

import json
import subprocess
from dataclasses import fields, replace

import httpx
import pytest
from serving import command, serving

from quire.commands.models import chosen_models, demo_models, named_models
from quire.commands.run_batch import COMMAND as RUN_BATCH
from quire.commands.serve import COMMAND as SERVE, models_to_serve
from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.settings.options import new_parser, normalize_flags
from quire_bench import offline

SETTINGS = {
    "model_impl": "quire",
    "tokenizer": "./t",
    "tokenizer_mode": "slow",
    "trust_remote_code": True,
    "revision": "r",
    "tokenizer_revision": "r",
    "hub": "modelscope",
    "download_dir": "./d",
    "load_format": "dummy",
    "dtype": "float32",
    "quantization": "int8",
    "kv_cache_dtype": "int8",
    "device": "cpu",
    "max_model_len": 77,
    "seed": 3,
    "chat_template": "{{ messages }}",
    "response_role": "robot",
    "generation_config": "none",
    "override_generation_config": {"temperature": 0.5},
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "scheduling_policy": "priority",
    "preemption": "recompute",
    "gpu_memory_utilization": 0.5,
    "swap_space": 0.5,
    "task": "generate",
    "pooling": "mean",
    "matryoshka": True,
    "structured_outputs_backend": "xgrammar",
    "structured_outputs_timeout_s": 3.0,
    "batch_invariant": True,
    "limit_mm_per_prompt": {"image": 1},
    "default_mm_loras": {"audio": "a-folder"},
    "allowed_local_media_path": "./m",
    "allowed_media_domains": ("a.org",),
    "allow_private_media_addresses": True,
    "max_media_seconds": 5.0,
    "media_timeout_s": 5.0,
    "media_decode_timeout_s": 5.0,
    "lora_load_timeout_s": 5.0,
    "structured_outputs_token_time_s": 0.5,
    "max_cpu_loras": 40,
    "quantization_group_size": 64,
    "quantization_ignore": ("lm_head",),
    "activation_bits": 16,
    "speculative_config": {"method": "ngram"},
    "speculative_model": "./d",
    "speculative_method": "suffix",
    "num_speculative_tokens": 9,
    "spec_acceptance": "typical",
    "speculative_lora": "./l",
    "enable_expert_parallel": True,
    "distributed_executor_backend": "mp",
    "master_addr": "10.0.0.9",
    "distributed_timeout_s": 9.0,
    "enforce_eager": True,
    "attention_backend": "torch",
    "kv_offloading_size": 1.5,
    "kv_disk": "./k",
    "kv_store_config": {"store": "disk"},
    "weights_cache": "./w",
    "load": "on-demand",
    "keep_alive": 60.0,
    "pinned": True,
}
"""A value that is not the default for each; other settings are whole numbers, which may be 9."""

BESIDE = {
    **dict.fromkeys(("quantization_group_size", "quantization_ignore"), ("--quantization", "int4")),
    "nnodes": ("--tensor-parallel-size", "9"),
    "node_rank": ("--nnodes", "10", "--tensor-parallel-size", "10"),
    **dict.fromkeys(("num_speculative_tokens", "spec_acceptance", "speculative_lora"), ("--speculative-model", "./d")),
}
"""Words without which a setting is refused."""

SETTABLE = [f.name for f in fields(ModelConfig) if f.name not in ("model", "served_model_name")]


@pytest.fixture(scope="module")
def found():
    return load()


def value_of(name):
    return SETTINGS.get(name, 9)


def words_for(name):
    flag, value, others = "--" + name.replace("_", "-"), value_of(name), BESIDE.get(name, ())
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, *(value if isinstance(value, tuple) else [str(value)]), *others]


def parsed(configure, *words):
    parser = new_parser("platform", "test")
    configure(parser)
    return parser.parse_args(normalize_flags(words))


@pytest.mark.parametrize("name", SETTABLE)
def test_every_setting_of_a_command_line_holds_for_every_demo(found, name):
    models = models_to_serve(parsed(SERVE.configure, *words_for(name)), found)
    demos = sorted(found.by_hook("quire_demo_models"))
    assert [model.name for model in models] == demos
    assert {repr(getattr(model, name)) for model in models} == {repr(value_of(name))}
    assert value_of(name) != getattr(ModelConfig(), name)
    (named,) = models_to_serve(parsed(SERVE.configure, f"x={models[0].model}", *words_for(name)), found)
    assert replace(named, served_model_name=(models[0].name,)) == models[0]


def test_they_hold_for_run_batch_too(found):
    args = parsed(RUN_BATCH.configure, "-i", "in", "-o", "out", "--seed", "3")
    assert {model.seed for model in chosen_models(vars(args), found)} == {3}


def test_bench_runs_the_first_demo_with_its_settings(found, monkeypatch):
    built = []
    monkeypatch.setattr("quire.engine.build.build_engine", lambda config, registry, tokenizer: built.append(config))
    args = parsed(offline.add_model_flags, "--max-model-len", "64", "--served-model-name", "mine")
    args.registry = found
    offline.engine_of(args)
    assert (built[0].name, built[0].served_model_name[1], built[0].max_model_len) == ("demo-chat", "mine", 64)
    assert len(built) == 1


def test_variables_and_the_file_hold_as_flags_do(found, tmp_path, monkeypatch):
    file = tmp_path / "quire.yaml"
    file.write_text("max_model_len: 70\nseed: 5\nallow-private-media-addresses: true\n")
    monkeypatch.setenv("QUIRE_SEED", "6")
    models = models_to_serve(parsed(SERVE.configure, "--config", str(file)), found)
    assert len(models) > 1
    assert {(m.max_model_len, m.seed, m.allow_private_media_addresses) for m in models} == {(70, 6, True)}


def test_without_settings_the_demos_have_the_usual_ones(found):
    for model in models_to_serve(parsed(SERVE.configure), found):
        assert model == ModelConfig(model=model.model, served_model_name=(model.name,))


def test_names_of_one_model_are_refused_for_all_the_demos(found):
    with pytest.raises(ConfigError, match=r"--served-model-name is for a single model, but .* demo-chat, demo-embed"):
        models_to_serve(parsed(SERVE.configure, "--served-model-name", "mine"), found)


def test_a_demo_alone_takes_more_names(found):
    alone = Registry(records={"quire_demo_models": {"demo-chat": found.by_hook("quire_demo_models")["demo-chat"]}})
    (model,) = demo_models({"served_model_name": ["mine"]}, alone)
    assert model.served_model_name == ("demo-chat", "mine")


def test_a_demo_can_be_named_and_has_settings_of_its_own(found):
    args = parsed(SERVE.configure, "demo-chat", "e=demo-embed", "--max-model-len", "99")
    chat, embed = models_to_serve(args, found)
    folders = {demo.name: str(demo.folder()) for demo in found.all("quire_demo_models")}
    assert (chat.model, chat.served_model_name, chat.max_model_len) == (folders["demo-chat"], ("demo-chat",), 99)
    assert (embed.model, embed.served_model_name) == (folders["demo-embed"], ("e",))


def test_a_folder_comes_before_a_demo_of_its_name(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-chat").mkdir()
    (model,) = named_models({"models_given": ["demo-chat"]}, found)
    assert model.model == "demo-chat"


def test_no_demo_and_no_model_is_an_error_where_one_is_needed():
    with pytest.raises(ConfigError, match="No model was given"):
        chosen_models({}, Registry())


def test_a_setting_that_a_demo_cannot_meet_stops_the_start_and_names_it():
    words = ("--plugins", "llama,bert", "--max-model-len", "1000", "--num-pages", "70", "--port", "0")
    done = subprocess.run(command("serve", *words), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "error: demo-embed: --max-model-len may be at most 256 for this model, got 1000." in done.stderr


def test_a_server_of_a_demo_does_as_it_was_set():
    with serving("--plugins", "llama", "--max-model-len", "64", "--num-pages", "20") as server:
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [(model["id"], model["max_model_len"]) for model in models] == [("demo-chat", 64), ("demo-tools", 64)]
        body = {"model": "demo-chat", "prompt": [5] * 60, "max_tokens": 10}
        refused = httpx.post(f"{server.url}/v1/completions", json=body)
        assert refused.status_code == 400
        assert "64" in refused.json()["error"]["message"]
