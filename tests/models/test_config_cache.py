"""Parsed configs from the cache, against those that transformers' classes parse."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_architectures
import transformers

from quire.errors import CheckpointError
from quire_models.loading import config_cache
from quire_models.loading.checkpoint import as_mapping, read_config

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4}


def written(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **values}))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("case_id", tiny_architectures.CASES)
def test_a_copy_describes_the_decoder_that_the_class_describes(tmp_path: Path, cache: Path, case_id: str) -> None:
    case = tiny_architectures.CASES[case_id]
    sizes = {} if case.own_sizes else tiny_architectures.COMMON
    config = getattr(transformers, case.config_class)(**{**sizes, **case.config})
    config.architectures = [case.architecture]
    config.save_pretrained(tmp_path)
    architecture = tiny_architectures.architectures()[case.architecture]
    expected = architecture.decoder(read_config(tmp_path))
    first, again = read_config(tmp_path, cache=cache), read_config(tmp_path, cache=cache)
    assert architecture.decoder(first) == architecture.decoder(again) == expected
    assert first == again


def test_the_cache_is_read_instead_of_parsing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_config(written(tmp_path), cache=cache)
    monkeypatch.setattr("quire_models.loading.checkpoint.config_mapping", None)  # not called
    again = read_config(tmp_path, cache=cache)
    assert (again.hidden_size, again.head_dim, again.num_hidden_layers) == (32, 8, 32)
    assert as_mapping(first) == as_mapping(again)
    with pytest.raises(TypeError):
        read_config(written(tmp_path, hidden_size=64), cache=cache)  # another config, which has to be parsed


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"config": 3}', '{"mapping": []}', '{"config": {"a": {"b": 1, "c": 2}}}']
)
def test_a_damaged_file_is_written_again(tmp_path: Path, cache: Path, text: str) -> None:
    expected = read_config(written(tmp_path), cache=cache)
    (file,) = cache.iterdir()
    good = file.read_text()
    file.write_text(text)
    assert read_config(tmp_path, cache=cache) == expected
    assert file.read_text() == good


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    assert read_config(written(tmp_path), cache=cache).hidden_size == 32


def test_errors_are_those_without_a_cache(tmp_path: Path, cache: Path) -> None:
    for values in ({"hidden_size": -1}, {"num_attention_heads": "many"}):
        said = []
        for where in (None, cache):
            with pytest.raises(CheckpointError) as caught:
                read_config(written(tmp_path, **values), cache=where)
            said.append(caught.value.message)
        assert said[0] == said[1]


def test_a_model_type_without_a_class_keeps_nested_values(tmp_path: Path, cache: Path) -> None:
    values = {"model_type": "unheard-of", "inner": {"depth": 3, "list": [1.5, None, {"deep": True}]}}
    written(tmp_path, **values)
    for _ in range(2):
        config = read_config(tmp_path, cache=cache)
        assert (config.inner.depth, config.inner.list) == (3, [1.5, None, {"deep": True}])


def test_values_that_json_lacks_survive(tmp_path: Path, cache: Path) -> None:
    given = SimpleNamespace(pair=(1, 2), labels={0: "a"}, far=float("inf"), function=print)
    written(tmp_path)
    for parse in (lambda: given, None):
        found = config_cache.cached(tmp_path / "config.json", cache, parse)
        assert (found.pair, found.labels, found.far) == ((1, 2), {0: "a"}, float("inf"))
        assert not hasattr(found, "function")


def test_old_files_are_deleted(tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    old, new = cache / "old.json", cache / "new.json"
    for file, age in ((old, config_cache.OLD_SECONDS + 60), (new, 60)):
        file.write_text("{}")
        os.utime(file, (time.time() - age,) * 2)
    read_config(written(tmp_path), cache=cache)
    assert new.exists()
    assert not old.exists()
