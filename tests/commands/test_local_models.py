"""`platform pull`, `list`, `show` and `rm`, with a cache folder as the Hugging Face hub makes it."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from quire import hub
from quire.cli import main
from quire.commands.local_models.commands import age
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import tiny_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def put(cache: Path, repo: str, files: dict[str, bytes], commit: str = COMMIT) -> Path:
    """Write files as a snapshot of a repository; returns its folder."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for name, content in files.items():
        blob = folder / "blobs" / f"{abs(hash((name, content))):040x}"
        blob.write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(Path("../" * (2 + name.count("/"))) / "blobs" / blob.name)
    return snapshot


@pytest.fixture
def cache(tmp_path, model):
    put(tmp_path, "org/tiny", {file.name: file.read_bytes() for file in model.iterdir()})
    put(tmp_path, "org/some-GGUF", {"m-Q4_K_M.gguf": b"4" * 40, "m-Q8_0.gguf": b"8" * 80, "README.md": b"text"})
    put(tmp_path, "org/style", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"a" * 10})
    put(tmp_path, "org/begun", {"config.json": b"{}"})
    return tmp_path


def run(capsys, *words):
    status = main([str(word) for word in words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def names(capsys, cache):
    return run(capsys, "list", "-q", "--download-dir", cache)[1].split()


def test_the_list_has_every_model_by_the_name_that_serves_it(cache, capsys):
    assert names(capsys, cache) == ["org/begun", "org/some-GGUF:Q4_K_M", "org/some-GGUF:Q8_0", "org/style", "org/tiny"]
    rows = {row["name"]: row for row in json.loads(run(capsys, "list", "--json", "--download-dir", cache)[1])}
    assert [row["kind"] for row in rows.values()] == ["partial", "gguf", "gguf", "adapter", "model"]
    assert rows["org/some-GGUF:Q8_0"]["bytes"] == 80
    table = run(capsys, "list", "--download-dir", cache)[1].splitlines()
    assert table[0].split() == ["NAME", "KIND", "SIZE", "REVISION", "LAST", "USED"]
    assert table[3].split() == ["org/some-GGUF:Q8_0", "gguf", "80", "B", COMMIT[:8], "now"]


def test_two_files_of_one_quantization_are_listed_by_their_names(tmp_path, capsys):
    parts = {f"big/m-Q8_0-0000{i}-of-00002.gguf": b"x" * i for i in (1, 2)}
    put(tmp_path, "org/g", {"a-Q4_0.gguf": b"1", "b-Q4_0.gguf": b"2", **parts})
    assert names(capsys, tmp_path) == ["org/g:a-Q4_0.gguf", "org/g:b-Q4_0.gguf", "org/g:Q8_0"]


@pytest.mark.parametrize("name", ["org/tiny", "org/some-GGUF:Q4_K_M", "org/some-GGUF:m-Q8_0.gguf"])
def test_what_is_in_the_cache_is_found_to_be_served_without_the_hub(cache, name, monkeypatch):
    monkeypatch.setattr("quire_models.gguf.file.parts.open_parts", lambda path: (path,))
    monkeypatch.setattr("quire_models.gguf.folder.model_folder", lambda parts, cache: parts[0].parent)
    found = hub.locate(name, ModelConfig(model=name, download_dir=str(cache)))
    assert (found.gguf or found.folder / "config.json").is_file()


def test_a_model_is_described_without_reading_its_weights(cache, model, capsys):
    status, said, _ = run(capsys, "show", "TINY", "--json", "--download-dir", cache)
    facts = json.loads(said)
    assert status == 0
    assert (facts["name"], facts["architecture"]) == ("org/tiny", "LlamaForCausalLM (plugin llama)")
    assert (facts["context"], facts["layers"], facts["width"]) == ("512 tokens", "2", "64")
    assert (facts["weights"], facts["chat template"]) == ("float32", "yes")
    of_folder = json.loads(run(capsys, "show", model, "--json")[1])
    assert of_folder["parameters"] == facts["parameters"]
    assert "adapters inspect" in run(capsys, "show", "org/style", "--download-dir", cache)[1]
    assert "demo" in run(capsys, "show", "demo-chat")[1]


def test_an_architecture_without_a_plugin_is_said(model, tmp_path, capsys):
    shutil.copytree(model, tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "NewForCausalLM"))
    assert "NewForCausalLM (no loaded plugin builds it)" in run(capsys, "show", tmp_path / "other")[1]


def test_a_repository_is_removed_with_all_its_files(cache, capsys):
    status, said, _ = run(capsys, "rm", "-y", "org/tiny", "style", "--download-dir", cache)
    assert status == 0
    assert "org/tiny is removed" in said
    assert names(capsys, cache) == ["org/begun", "org/some-GGUF:Q4_K_M", "org/some-GGUF:Q8_0"]
    assert not (cache / "models--org--tiny").exists()


def test_of_a_repository_with_several_gguf_models_only_one_is_removed(cache, capsys):
    put(cache, "org/some-GGUF", {"m-Q8_0.gguf": b"9" * 80}, commit="f" * 40)
    (cache / "models--org--some-GGUF" / "refs" / "main").write_text(COMMIT)
    run(capsys, "rm", "-y", "org/some-GGUF:Q4_K_M", "--download-dir", cache)
    assert "org/some-GGUF:Q4_K_M" not in names(capsys, cache)
    assert "org/some-GGUF:Q8_0" in names(capsys, cache)
    sizes = sorted(blob.stat().st_size for blob in (cache / "models--org--some-GGUF" / "blobs").iterdir())
    assert sizes == [4, 80, 80]


def test_nothing_is_removed_without_an_answer(cache, capsys, monkeypatch):
    before = names(capsys, cache)
    status, _, error = run(capsys, "rm", "org/tiny", "--download-dir", cache)
    assert (status, "add --yes" in error) == (2, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert run(capsys, "rm", "org/tiny", "--download-dir", cache)[0] == 1
    assert names(capsys, cache) == before


def test_a_name_that_is_not_there_suggests_one_that_is(cache, capsys):
    for command in ("show", "rm"):
        status, _, error = run(capsys, command, "org/tini", "--download-dir", cache)
        assert status == 2
        assert "Did you mean 'org/tiny'?" in error
    assert "`platform pull org/begun`" in run(capsys, "show", "org/begun", "--download-dir", cache)[2]


def test_an_empty_cache_says_what_fills_it(tmp_path, capsys):
    status, said, hint = run(capsys, "list", "--download-dir", tmp_path / "none")
    assert (status, said, "platform pull" in hint) == (0, "", True)


def test_pulling_downloads_what_serving_needs_and_says_where_and_how_much(tmp_path, model, capsys, monkeypatch):
    asked = []

    def download(repo, **options):
        asked.append((repo, options["revision"], options["cache_dir"]))
        return str(put(tmp_path, repo, {file.name: file.read_bytes() for file in model.iterdir()}))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    status, said, _ = run(capsys, "pull", "org/new", "--revision", "v1", "--download-dir", tmp_path)
    size = sum(file.stat().st_size for file in model.iterdir())
    assert status == 0
    assert said.startswith(f"org/new: {size / 1000:.3g} kB in {tmp_path}")
    assert asked == [("org/new", "v1", str(tmp_path))]
    assert names(capsys, tmp_path) == ["org/new"]


def test_a_download_that_is_not_possible_is_one_sentence(tmp_path, model, capsys):
    status, _, error = run(capsys, "pull", "org/none", "--download-dir", tmp_path)
    assert (status, error.count("\n")) == (2, 1)
    assert "cannot be downloaded from Hugging Face" in error
    assert "is on this machine already" in run(capsys, "pull", model)[2]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "now"), (60, "1 minute ago"), (7200, "2 hours ago"), (86400 * 800, "2 years ago")]
)
def test_the_last_use_is_given_in_the_largest_unit(seconds, text):
    assert age(seconds) == text
