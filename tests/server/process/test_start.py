"""How `platform serve` starts: what is imported when, and what is read before the models are loaded."""

import gc
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_client import info

from quire.errors import CheckpointError, ConfigError
from quire.records import Registry
from quire.server.process.frontend_loader import FrontendLoader, load_frontends
from quire.server.process.start import run_server
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "quire.server.process.start",
            "fastapi starlette pydantic uvicorn uvloop jinja2 prometheus_client torch transformers",
        ),
        ("quire.server.process.serve", "torch transformers numpy"),
        ("quire.engine_process.process", "torch transformers fastapi"),
    ],
)
def test_nothing_is_imported_before_its_time(module, absent):
    code = f"import sys, {module}; print([name for name in {absent.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def folder(tmp_path):
    return byte_tokenizer(tmp_path, "{{ messages[0].content }}")


@pytest.fixture
def loaded(monkeypatch):
    """Folders from which tokenizers were loaded."""
    seen, load = [], Tokenizer.load

    def noting(path, *how):
        seen.append(Path(path))
        return load(path, *how)

    monkeypatch.setattr(Tokenizer, "load", noting)
    return seen


def test_what_was_prepared_is_not_read_again(folder, loaded):
    text = FrontendLoader(ServerConfig(), Registry())
    models = [ModelConfig(model=str(folder)), ModelConfig(model="owner/somewhere-else", tokenizer=str(folder))]
    text.prepare(models)
    read = len(loaded)
    infos = [info("a", folder=str(folder)), info("b", folder="/nowhere")]
    a, b = text.load(models, infos)
    assert len(loaded) == read
    assert [a.tokenizer.vocab_size, a.template is not None] == [b.tokenizer.vocab_size, b.template is not None]
    assert (a.info, b.info) == tuple(infos)


def test_models_with_equal_files_share_a_tokenizer_as_long_as_one_uses_it(folder, tmp_path, loaded):
    copy, other = tmp_path / "copy", byte_tokenizer(tmp_path / "other", "{{ messages[-1].content }}")
    shutil.copytree(folder, copy)
    text = FrontendLoader(ServerConfig(), Registry())

    def load(path):
        (served,) = text.load([ModelConfig(model=str(path))], [info(folder=str(path))])
        return served.tokenizer

    first = load(folder)
    assert load(copy) is first
    assert load(other) is not first, "its chat template is another one"
    assert len(loaded) == 2
    (copy / "special_tokens_map.json").write_text('{"bos_token": "a"}')
    assert load(copy).bos_id is not None
    assert load(folder) is first
    del first
    gc.collect()
    load(folder)
    assert len(loaded) == 4


def test_what_cannot_be_prepared_is_read_when_its_folder_is_known(folder, loaded):
    text = FrontendLoader(ServerConfig(), Registry())
    models = [ModelConfig(model="owner/name")]
    text.prepare(models)
    assert loaded == []
    (served,) = text.load(models, [info(folder=str(folder))])
    assert served.tokenizer.encode("a") == Tokenizer.load(folder).encode("a")


def test_problems_are_printed_after_the_models_have_loaded(folder, tmp_path):
    text = FrontendLoader(ServerConfig(), Registry())
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = byte_tokenizer(tmp_path / "wrong", "{% if %}")
    models = [ModelConfig(model=str(path)) for path in (empty, wrong, folder)]
    text.prepare(models)
    infos = [info(path.name, folder=str(path)) for path in (empty, wrong, folder)]
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        text.load(models[:1], infos[:1])
    with pytest.raises(ConfigError, match="chat template 'default' cannot be used"):
        text.load(models[1:2], infos[1:2])
    assert len(text.load(models[2:], infos[2:])) == 1


def test_a_template_of_the_settings_takes_the_place_of_the_models_own(folder):
    model = ModelConfig(model=str(folder))
    override = replace(model, chat_template="said: {{ messages[0].content }}")
    text = [load_frontends([one], [info(folder=str(folder))], ServerConfig(), Registry()) for one in (model, override)]
    said = [{"role": "user", "content": "hi"}]
    assert [one.template.render(said) for (one,) in text] == ["hi", "said: hi"]


def test_limits_of_media_that_cannot_be_stop_the_start_before_a_model_loads(tmp_path):
    model = ModelConfig(model="/no/such/model", allowed_local_media_path=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"--allowed-local-media-path .* is not a folder"):
        run_server([model], ServerConfig(port=0), Registry())


def test_a_folder_with_settings_of_a_tokenizer_and_no_vocabulary_says_which_files_it_lacks(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(CheckpointError, match=r"has no tokenizer: expected tokenizer\.json"):
        Tokenizer.load(tmp_path)
