"""`--trust-remote-code` and `--tokenizer-mode slow`: what runs of a checkpoint's own code, and what does not."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from quire.errors import CheckpointError
from quire.hub import resolve
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading.checkpoint import read_config
from quire_testing.tiny import byte_tokenizer

TOKENIZER = """
from transformers import PreTrainedTokenizer

class Digits(PreTrainedTokenizer):
    vocab_size = 10
    def get_vocab(self): return {str(i): i for i in range(10)}
    def _tokenize(self, text): return [c for c in text if c.isdigit()]
    def _convert_token_to_id(self, token): return int(token)
    def _convert_id_to_token(self, index): return str(index)
    def convert_tokens_to_string(self, tokens): return "".join(tokens)
    def save_vocabulary(self, *args, **kwargs): return ()
"""

CONFIG = """
from transformers import PretrainedConfig

class Own(PretrainedConfig):
    model_type = "own_kind"
    def __init__(self, depth=7, **kwargs):
        super().__init__(**kwargs)
        {body}
        self.depth = depth
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    folder = tmp_path / "coded"
    folder.mkdir()
    settings = {"tokenizer_class": "Digits", "auto_map": {"AutoTokenizer": ["digits_code.Digits", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "digits_code.py").write_text(TOKENIZER)
    return folder


def test_a_tokenizer_that_is_code_runs_only_if_it_is_trusted(coded: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is Python code .* --trust-remote-code"):
        Tokenizer.load(coded)
    tokenizer = Tokenizer.load(coded, trust_remote_code=True)
    assert tokenizer.encode("a1b2", add_special_tokens=False) == [1, 2]
    assert tokenizer.decode([4, 2]) == "42"


def test_a_folder_without_code_is_read_the_same_either_way(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    assert Tokenizer.load(tmp_path, trust_remote_code=True).vocab == Tokenizer.load(tmp_path).vocab


def own_config(folder: Path, body: str = "") -> Path:
    folder.mkdir()
    raw = {"architectures": ["A"], "model_type": "own_kind", "auto_map": {"AutoConfig": "own_code.Own"}, "width": 3}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "own_code.py").write_text(CONFIG.format(body=body))
    return folder


def test_a_config_class_of_the_checkpoint_fills_in_its_defaults_only_if_it_is_trusted(tmp_path: Path) -> None:
    folder = own_config(tmp_path / "own")
    assert not hasattr(read_config(folder), "depth")
    trusted = read_config(folder, trust_remote_code=True)
    assert (trusted.depth, trusted.width) == (7, 3)


def test_a_config_class_that_fails_leaves_the_config_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = own_config(tmp_path / "own", "raise RuntimeError('too old')")
    with caplog.at_level(logging.WARNING):
        assert read_config(folder, trust_remote_code=True).width == 3
    assert "config class failed (too old); config.json is read as it is" in caplog.text


def test_code_is_downloaded_only_if_it_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    from quire.settings.model_config import ModelConfig

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, allow_patterns, **k: asked.append(allow_patterns) or tmp_path
    )
    for trusted in (False, True):
        resolve("owner/model", ModelConfig(trust_remote_code=trusted, load_format="dummy"))
    assert ["*.py" in patterns for patterns in asked] == [False, True]


def test_a_tokenizer_in_python_is_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    tokenizer = Tokenizer.load(tmp_path, "slow")
    assert tokenizer.decode(tokenizer.encode("größer")) == "größer"


def test_where_there_is_none_in_python_the_fast_one_is_used_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    byte_tokenizer(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert Tokenizer.load(tmp_path, "slow").encode("abc") == Tokenizer.load(tmp_path).encode("abc")
    assert "--tokenizer-mode slow: transformers has no tokenizer in Python" in caplog.text
