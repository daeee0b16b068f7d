"""Folders of models made to do harm: each is refused with a sentence, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lora_rig import Base

from quire import hub
from quire.engine.loading.load import load_model
from quire.errors import CheckpointError, QuireError
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading import checkpoint, tensor_files as tensors

FILES = (
    *("config.json", "generation_config.json", "modules.json", "model.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Base(tmp_path_factory.mktemp("models") / "base", "LlamaForCausalLM").folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "model")


def load(folder: Path) -> None:
    """What a server does with a folder."""
    config = ModelConfig(model=str(folder), device="cpu", dtype="float32")
    load_model(config, registry.load(None))
    Tokenizer.load(hub.resolve_tokenizer(config, folder))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as found:
        load(folder)
    return found.value.message


def test_the_folder_itself_is_good(folder: Path) -> None:
    load(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_a_link_out_of_the_folder_is_refused_in_the_place_of_any_file(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "it is not a regular file" in refused(folder)
    for target in ("/dev/zero", "/etc/passwd"):
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        assert "leads out of its folder" in refused(folder)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_json_that_is_deep_or_has_long_numbers_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("[" * 200_000)
    assert "deep" in refused(folder) or name in refused(folder)
    if name != "tokenizer.json":  # another library reads it, with bounds of its own
        (folder / name).write_text(f'{{"a": {"9" * 4000}}}')
        assert "4000 digits" in refused(folder)


ABSURD: tuple[Any, ...] = (-1, 0, 1 << 62, 10**40, 1e308, "x", [], {}, [[]], True, None)


def test_no_value_of_a_config_does_worse_than_an_error(folder: Path, made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    found = registry.load(None)
    for name in config:
        for value in ABSURD:
            (folder / "config.json").write_text(json.dumps({**config, name: value}))
            try:
                load_model(ModelConfig(model=str(folder), device="cpu", dtype="float32"), found)
            except QuireError:
                continue


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 1 << 60]}},
        {"a": {"dtype": "F9", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [int("9" * 4000)], "data_offsets": [0, 8]}},
        ["a"],
    ],
    ids=str,
)
def test_headers_that_lie_are_refused(folder: Path, header: Any) -> None:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        tensors.find(folder)


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        value = json.loads(text)
        change(value)
        return json.dumps(value)

    return edit


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "{}",
        lambda text: "[1, 2]",
        edited(lambda value: value["model"].update(vocab={"a": 1 << 40})),
        edited(lambda value: value["model"].update(type="Nothing")),
        edited(lambda value: value.update(added_tokens=[{"id": 1 << 33, "content": "x"}])),
        edited(lambda value: value.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}})),
        edited(lambda value: value.update(decoder={"type": "Sequence", "decoders": [[]]})),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(folder: Path, change: Callable[[str], str]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Tokenizer.load(folder)


def test_infinity_is_read_as_transformers_writes_it(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    limits = [0.0, {"__float__": "Infinity"}]
    (folder / "config.json").write_text(
        json.dumps({**config, "time_step_limit": limits, "x": {"__float__": "-Infinity"}})
    )
    parsed = checkpoint.read_config(folder)
    assert (parsed.time_step_limit, parsed.x) == ([0.0, float("inf")], float("-inf"))


ABSURD_SETTINGS: dict[str, Any] = {
    "num_hidden_layers": 10**9,
    "vocab_size": 10**12,
    "num_attention_heads": 0,
    "num_key_value_heads": 3,
    "hidden_size": 2**31,
    "intermediate_size": 10**12,
    "head_dim": 10**9,
    "max_position_embeddings": 2**63,
    "rope_parameters": {"rope_type": "default", "rope_theta": 0.0},
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("name", ABSURD_SETTINGS)
def test_absurd_numbers_of_a_config_are_named(folder: Path, name: str) -> None:
    path = folder / "config.json"
    path.write_text(edited(lambda value: value.update({name: ABSURD_SETTINGS[name]}))(path.read_text()))
    assert name in refused(folder) or "rope_theta" in refused(folder)


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_rotary_factors_of_another_number_are_refused(folder: Path, count: int) -> None:
    scaling = {**LONG, "short_factor": [1.0] * count, "long_factor": [1.0] * count}
    path = folder / "config.json"
    path.write_text(edited(lambda value: value.update(rope_parameters=scaling))(path.read_text()))
    assert "rotary factors; it must have" in refused(folder)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1e308}, {"top_p": -5}, {"top_k": [1]}, {"repetition_penalty": 0}, {"eos_token_id": [-1]}],
)
def test_absurd_numbers_of_a_generation_config_are_named(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    said = refused(folder)
    assert "generation_config.json" in said
    assert next(iter(settings)) in said


def test_weights_that_overlap_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    for tensor in header.values():
        if "data_offsets" in tensor:
            first, last = tensor["data_offsets"]
            tensor["data_offsets"] = [0, last - first]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[begin:])
    assert "truncated or corrupt" in refused(folder)


def test_a_header_of_100_megabytes_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100 << 20))
    os.truncate(path, 200 << 20)
    assert "header too large" in refused(folder)


@pytest.mark.parametrize(
    "target", ["../outside.safetensors", "/etc/passwd", "..", "", "a/../../outside.safetensors", "\0"]
)
def test_an_index_that_names_files_outside_is_refused(folder: Path, target: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": target}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.safetensors.index.json names" in refused(folder)
