import sys
from pathlib import Path
from types import ModuleType

import huggingface_hub
import pytest
from huggingface_hub import errors

from quire.errors import ConfigError
from quire.hub import resolve, resolve_tokenizer
from quire.settings.model_config import ModelConfig


class Hub:
    """Stands in for a hub's download function: remembers calls, writes the files it has."""

    def __init__(self, folder: Path, *files: str) -> None:
        self.folder, self.files, self.calls = folder, files, []

    def __call__(self, repo, **options):
        from fnmatch import fnmatch

        self.calls.append((repo, options))
        for file in self.files:
            if any(fnmatch(file, pattern) for pattern in options["allow_patterns"]):
                (self.folder / file).write_text("")
        return str(self.folder)


def refuse(error):
    def download(*_, **__):
        raise error

    return download


def test_a_folder_is_used_where_it_is(tmp_path):
    assert resolve(str(tmp_path), ModelConfig()) == tmp_path


def test_a_hub_id_is_downloaded_with_safetensors_and_without_pickles(tmp_path, monkeypatch):
    hub = Hub(tmp_path, "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.model")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    config = ModelConfig(revision="v2", download_dir="/cache")
    assert resolve("owner/name", config) == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.model"]
    (repo, options), *_ = hub.calls
    assert (repo, options["revision"], options["cache_dir"], len(hub.calls)) == ("owner/name", "v2", "/cache", 1)


def test_pickles_are_fetched_only_when_there_are_no_safetensors(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(tmp_path, "config.json", "pytorch_model.bin"))
    resolve("owner/name", ModelConfig())
    assert (tmp_path / "pytorch_model.bin").exists()


@pytest.mark.parametrize(
    ("load_format", "weights"), [("dummy", []), ("pt", ["pytorch_model.bin"]), ("safetensors", ["model.safetensors"])]
)
def test_the_load_format_decides_which_weights_are_fetched(tmp_path, monkeypatch, load_format, weights):
    hub = Hub(tmp_path, "config.json", "model.safetensors", "pytorch_model.bin")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    resolve("owner/name", ModelConfig(load_format=load_format))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", *weights]


def test_the_tokenizer_lies_with_the_model_unless_another_is_named(tmp_path, monkeypatch):
    hub = Hub(tmp_path, "tokenizer.json", "model.safetensors")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert resolve_tokenizer(ModelConfig(), Path("/m")) == Path("/m")
    assert resolve_tokenizer(ModelConfig(tokenizer="owner/t", tokenizer_revision="r"), Path("/m")) == tmp_path
    assert hub.calls[0][1]["revision"] == "r"
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./missing", "a/b/c", "~/nowhere-at-all", "two words", "a--b", "x/.."]
)
def test_what_is_neither_a_folder_nor_an_id_is_refused_without_a_download(monkeypatch, name):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse(AssertionError("no download expected")))
    with pytest.raises(ConfigError, match="no folder"):
        resolve(name, ModelConfig())


def test_a_file_and_an_empty_name_are_refused(tmp_path):
    (tmp_path / "model.pt").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        resolve(str(tmp_path / "model.pt"), ModelConfig())
    with pytest.raises(ConfigError, match="No model"):
        resolve("", ModelConfig())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("x"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "offline mode"),
        (errors.HFValidationError("x"), "not a valid hub id"),
        (OSError("disk full"), "disk full"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failed_download_says_why(monkeypatch, error, words):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse(error))
    with pytest.raises(ConfigError, match=words):
        resolve("owner/name", ModelConfig())


def test_modelscope_is_asked_when_the_settings_say_so(tmp_path, monkeypatch):
    module = ModuleType("modelscope")
    module.snapshot_download = hub = Hub(tmp_path, "config.json", "model.safetensors")
    monkeypatch.setitem(sys.modules, "modelscope", module)
    assert resolve("owner/name", ModelConfig(hub="modelscope")) == tmp_path
    assert hub.calls[0][0] == "owner/name"
    module.snapshot_download = refuse(ConnectionError("no route"))
    with pytest.raises(ConfigError, match="ModelScope failed: ConnectionError: no route"):
        resolve("owner/name", ModelConfig(hub="modelscope"))


def test_without_modelscope_installed_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ConfigError, match="pip install modelscope"):
        resolve("owner/name", ModelConfig(hub="modelscope"))
