import json

import pytest
from transformers import LlamaConfig

from quire import files
from quire.errors import CheckpointError
from quire_models.loading import checkpoint

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
}


def folder_with(tmp_path, generation=None, /, **changes):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return tmp_path


def test_a_known_model_type_is_read_with_transformers_defaults(tmp_path):
    config = checkpoint.read_config(folder_with(tmp_path))
    assert isinstance(config, LlamaConfig)
    assert (config.hidden_size, config.rms_norm_eps) == (32, LlamaConfig().rms_norm_eps)


def test_an_unknown_model_type_becomes_a_namespace_with_nested_ones(tmp_path):
    config = checkpoint.read_config(folder_with(tmp_path, model_type="unheard-of", inner={"depth": 3}))
    assert (config.hidden_size, config.inner.depth) == (32, 3)
    assert checkpoint.as_mapping(config)["inner"] == {"depth": 3}


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        checkpoint.read_config(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000, '"x"'])
def test_a_corrupt_config_is_a_checkpoint_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        checkpoint.read_config(tmp_path)


def test_a_config_that_is_no_text_or_too_large_is_a_checkpoint_error(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        checkpoint.read_config(tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(files.MAX_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match="at most 16777216 are read"):
        checkpoint.read_config(tmp_path)


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [1]])
def test_a_config_must_name_its_architectures(tmp_path, architectures):
    with pytest.raises(CheckpointError, match="architectures"):
        checkpoint.read_config(folder_with(tmp_path, architectures=architectures))


@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 10**9),
        ("vocab_size", 10**9),
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", 0),
        ("hidden_size", -1),
        ("vocab_size", 1.5),
        ("vocab_size", "128"),
        ("num_attention_heads", True),
        ("intermediate_size", [64, -1]),
        ("max_position_embeddings", 10**12),
    ],
)
def test_absurd_sizes_are_refused_by_name(tmp_path, model_type, name, value):
    with pytest.raises(CheckpointError, match=name):
        checkpoint.read_config(folder_with(tmp_path, model_type=model_type, **{name: value}))


def test_absurd_sizes_one_level_down_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="hidden_size"):
        checkpoint.read_config(folder_with(tmp_path, model_type="unheard-of", text_config={"hidden_size": 10**9}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads .4. is not a multiple"),
        ({"hidden_size": 34}, "hidden_size .34. is not a multiple"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"config\.json"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(tmp_path, changes, words):
    with pytest.raises(CheckpointError, match=words):
        checkpoint.read_config(folder_with(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 96),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 384),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96}}, 384),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}}, 96),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                }
            },
            96,
        ),
    ],
)
def test_the_longest_length_includes_rotary_scaling(tmp_path, changes, length):
    assert checkpoint.max_length(checkpoint.read_config(folder_with(tmp_path, **changes))) == length


def test_lengths_are_found_under_other_names_and_one_level_down(tmp_path):
    def length(**changes):
        without = {key: value for key, value in TINY.items() if key != "max_position_embeddings"}
        (tmp_path / "config.json").write_text(json.dumps({**without, "model_type": "unheard-of", **changes}))
        return checkpoint.max_length(checkpoint.read_config(tmp_path))

    assert length() is None
    assert length(n_positions=7) == 7
    assert length(text_config={"max_position_embeddings": 9}) == 9


def test_the_dtype_is_read_under_both_names(tmp_path):
    assert checkpoint.checkpoint_dtype(folder_with(tmp_path)) is None
    assert checkpoint.checkpoint_dtype(folder_with(tmp_path, torch_dtype="torch.float16")) == "float16"
    assert checkpoint.checkpoint_dtype(folder_with(tmp_path, dtype="bfloat16")) == "bfloat16"


def test_quantized_checkpoints_are_recognised(tmp_path):
    config, other = {"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}
    assert checkpoint.quantization_config(folder_with(tmp_path)) is None
    assert checkpoint.quantization_config(folder_with(tmp_path, quantization_config=config)) == config
    assert checkpoint.quantization_config(folder_with(tmp_path, text_config={"quantization_config": config})) == config
    with pytest.raises(CheckpointError, match="does not say its `quant_method`"):
        checkpoint.quantization_config(folder_with(tmp_path, quantization_config={"bits": 4}))
    with pytest.raises(CheckpointError, match="more than one quantization config"):
        checkpoint.quantization_config(
            folder_with(tmp_path, quantization_config=config, text_config={"quantization_config": other})
        )


def test_generation_defaults_are_those_present_and_eos_ids_are_joined(tmp_path):
    generation = {"eos_token_id": [5, 7], "temperature": 0.6, "top_k": None, "max_new_tokens": 20, "pad_token_id": 1}
    folder = folder_with(tmp_path, generation, eos_token_id=2)
    found = checkpoint.read_generation(folder, checkpoint.read_config(folder))
    assert found.eos_ids == (5, 7, 2)
    assert found.sampling_defaults == {"temperature": 0.6, "max_tokens": 20}


def test_without_a_generation_config_there_are_no_defaults(tmp_path):
    folder = folder_with(tmp_path, model_type="unheard-of")
    found = checkpoint.read_generation(folder, checkpoint.read_config(folder))
    assert (found.eos_ids, found.sampling_defaults) == ((), {})


@pytest.mark.parametrize(
    ("generation", "words"),
    [({"temperature": "hot"}, "temperature"), ({"top_p": 7}, "top_p"), ({"eos_token_id": ["</s>"]}, "eos_token_id")],
)
def test_impossible_generation_defaults_are_refused(tmp_path, generation, words):
    folder = folder_with(tmp_path, generation)
    with pytest.raises(CheckpointError, match=words):
        checkpoint.read_generation(folder, checkpoint.read_config(folder))
