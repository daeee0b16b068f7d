"""Draft models that cannot be used are refused when the engine is built, with a sentence that says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from draft_model_rig import draft_model_rig
from engine_rig import greedy, make_rig

from quire.errors import ConfigError
from quire_testing.tiny import tiny_llama, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


def refusal(folder: Path, settings: dict[str, Any], **others: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_rig(folder, speculative_config={"method": "draft_model", **settings}, **others)
    return raised.value.message


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({}, "needs `model`"),
        ({"model": ""}, "needs `model`"),
        ({"model": 3}, "`model` of --speculative-config must be a text"),
        ({"model": "/no/such/folder"}, "There is no folder '/no/such/folder'"),
        ({"model": "x", "max_model_len": 0}, "`max_model_len` of --speculative-config must be a number above 0"),
        ({"model": "x", "max_model_len": "long"}, "must be a number above 0; got 'long'"),
        ({"model": "x", "dtype": "float7"}, "float7"),
        (
            {"model": "x", "draft_tensor_parallel_size": 2},
            "`draft_tensor_parallel_size` of --speculative-config can only be 1 here",
        ),
        ({"model": "x", "num_speculative_tokens": 10_000}, "from 1 to 64"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(folder: Path, settings: dict[str, Any], part: str) -> None:
    assert part in refusal(folder, settings)


def test_a_method_quantization_that_does_not_exist_is_refused(folder: Path) -> None:
    message = refusal(folder, {"model": str(folder), "quantization": "int5"})
    assert message.startswith(f"--speculative-config: the draft model {str(folder)!r} cannot be used: ")
    assert "int5" in message


def test_a_vocabulary_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    draft = tiny_llama(tmp_path / "draft", vocab_size=300)
    (draft / "tokenizer.json").unlink()
    assert "its vocabulary has 300 tokens, that of the served model" in refusal(folder, {"model": str(draft)})


def test_another_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    draft = shutil.copytree(folder, tmp_path / "draft")
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[60:62]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "its tokenizer is another: 2 tokens differ" in refusal(folder, {"model": str(draft)})


def test_padding_of_the_vocabulary_may_differ(folder: Path, tmp_path: Path) -> None:
    draft = tiny_llama(tmp_path / "draft", vocab_size=400)
    with draft_model_rig(folder, draft) as (rig, _), draft_model_rig(draft, folder) as (padded, _):
        for each in (rig, padded):
            assert len(each.tokens([[5, 6, 7]], greedy(12, ignore_eos=True))[0]) == 12


@pytest.mark.parametrize(
    ("architecture", "part"),
    [("BertModel", "it generates no text"), ("MambaForCausalLM", "recurrent state cannot be rolled back")],
)
def test_models_that_cannot_draft_are_refused(folder: Path, tmp_path: Path, architecture: str, part: str) -> None:
    draft = tiny_model(tmp_path / "draft", architecture)
    assert part in refusal(folder, {"model": str(draft), "max_model_len": 32})


def test_its_memory_is_counted_and_limited(folder: Path) -> None:
    with draft_model_rig(folder, folder) as (rig, drafter):
        assert rig.engine.memory.drafter == drafter.memory_bytes > rig.engine.loaded.weight_bytes
        assert rig.engine.memory.total > rig.engine.memory.weights + rig.engine.memory.kv_cache
        assert rig.engine.info.kv_cache_bytes == rig.engine.memory.kv_cache
    assert "no memory is left" in refusal(folder, {"model": str(folder), "kv_cache_memory_bytes": 1})


def test_it_may_be_quantized(folder: Path) -> None:
    with (
        draft_model_rig(folder, folder, {"quantization": "int8"}) as (rig, _),
        draft_model_rig(folder, folder) as (
            plain,
            _,
        ),
    ):
        assert rig.tokens([[5, 6, 7]], greedy(12)) == plain.tokens([[5, 6, 7]], greedy(12))
