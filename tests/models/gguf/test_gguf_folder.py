"""From the name of a GGUF file to the folder that a model is served from."""

from __future__ import annotations

import errno
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import pytest
from hostile_gguf import small_file

from quire import hub
from quire.errors import CheckpointError, ConfigError
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.folder import folder_contents, model_folder
from quire_models.loading import checkpoint, sentence_transformers


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model; the cache is in the test's folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = tmp_path / "models" / "model-Q4_K_M.gguf"
    made.parent.mkdir()
    small_file(made)
    return made


def test_a_file_and_a_folder_with_only_it_are_found(path):
    found = hub.locate(str(path), ModelConfig())
    assert found.gguf == path
    assert found.folder.parent == Path.home() / ".cache" / "quire" / "gguf"
    of_folder = hub.locate(str(path.parent), ModelConfig())
    assert (of_folder.folder, of_folder.gguf) == (found.folder, found.gguf)
    config = checkpoint.read_config(found.folder)
    assert (config.architectures, config.hidden_size, config.vocab_size) == (["LlamaForCausalLM"], 256, 264)
    assert checkpoint.checkpoint_dtype(found.folder) == "bfloat16"
    assert checkpoint.read_generation(found.folder, config).eos_ids == (2,)
    tokenizer = Tokenizer.load(found.folder)
    assert (tokenizer.bos_id, tokenizer.chat_template) == (1, "{{ messages }}")


def test_a_folder_with_other_weights_keeps_them(path):
    (path.parent / "model.safetensors").write_text("")
    assert hub.locate(str(path.parent), ModelConfig()) == hub.ModelFiles(path.parent)


def test_a_folder_with_several_models_lists_them_and_leaves_projectors_out(path):
    (path.parent / "mmproj-model-f16.gguf").write_text("")
    assert hub.locate(str(path.parent), ModelConfig()).gguf == path
    (path.parent / "other.gguf").write_text("")
    with pytest.raises(ConfigError, match=r"several GGUF models; .*: model-Q4_K_M\.gguf, other\.gguf"):
        hub.locate(str(path.parent), ModelConfig())


def test_the_folder_is_made_once_for_a_header(path, tmp_path):
    first = hub.resolve(str(path), ModelConfig())
    before = (first / "config.json").stat().st_mtime_ns
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert hub.resolve(str(copy), ModelConfig()) == first
    assert (first / "config.json").stat().st_mtime_ns == before
    copy.write_bytes(path.read_bytes().replace(b"{{ messages }}", b"{{ another_ }}"))
    assert hub.resolve(str(copy), ModelConfig()) != first


def test_a_folder_for_downloads_holds_the_cache_too(path, tmp_path):
    found = hub.resolve(str(path), ModelConfig(download_dir=str(tmp_path / "downloads")))
    assert found.parent == tmp_path / "downloads" / "gguf"


def test_a_full_disk_leaves_no_folder_behind(path, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        model_folder(open_parts(path), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_of_two_processes_the_slower_uses_the_folder_of_the_faster(path, tmp_path, monkeypatch):
    first = model_folder(open_parts(path), tmp_path / "cache")
    monkeypatch.setattr("pathlib.Path.is_dir", lambda self, seen=[]: bool(seen) or bool(seen.append(self)))
    assert model_folder(open_parts(path), tmp_path / "cache") == first
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_another_tokenizer_may_be_a_gguf_file_too(path):
    found = hub.resolve_tokenizer(ModelConfig(tokenizer=str(path)), Path("/m"))
    assert (found / "tokenizer.json").is_file()


@pytest.mark.parametrize("load_format", ["safetensors", "pt"])
def test_a_format_of_other_files_is_refused_for_a_gguf_file(path, load_format):
    with pytest.raises(ConfigError, match=f"--load-format {load_format}: model-Q4_K_M.gguf is a GGUF file"):
        hub.resolve(str(path), ModelConfig(load_format=load_format))


def test_a_file_that_is_no_gguf_is_refused_with_its_name(path):
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"model-Q4_K_M\.gguf is not a usable GGUF file"):
        hub.resolve(str(path), ModelConfig())


class Hub:
    """Stands in for a hub's download function: has files, and writes those that are asked for."""

    def __init__(self, folder: Path, content: bytes, *files: str) -> None:
        self.folder, self.content, self.files = folder, content, files
        self.repo = ""

    def __call__(self, repo: str, **options: Any) -> str:
        self.repo = repo
        for file in self.files:
            if any(fnmatch(file, pattern) for pattern in options["allow_patterns"]):
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / file).write_bytes(self.content)
        return str(self.folder)

    def fetched(self) -> list[str]:
        return sorted(str(file.relative_to(self.folder)) for file in self.folder.rglob("*") if file.is_file())


FILES = (
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0.gguf",
    "mmproj-Q8_0.gguf",
    "BF16/m-BF16.gguf",
    "m.Q2_K.gguf",
)


@pytest.mark.parametrize(
    ("which", "fetched"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q4_k_m", ["m-Q4_K_M.gguf"]),
        ("Q2_K", ["m.Q2_K.gguf"]),
        ("Q8_0", ["m-Q8_0.gguf", "mmproj-Q8_0.gguf"]),
        ("BF16", ["BF16/m-BF16.gguf"]),
        ("m-Q4_K_S.gguf", ["m-Q4_K_S.gguf"]),
        ("BF16/m-BF16.gguf", ["BF16/m-BF16.gguf"]),
    ],
)
def test_a_file_or_a_quantization_of_a_repository_is_fetched_alone(path, tmp_path, monkeypatch, which, fetched):
    found = Hub(tmp_path / "hub", path.read_bytes(), *FILES)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    located = hub.locate(f"owner/name:{which}", ModelConfig())
    assert found.repo == "owner/name"
    assert found.fetched() == sorted(fetched)
    assert located.gguf == found.folder / fetched[0]


def test_all_parts_of_a_model_are_fetched(path, tmp_path, monkeypatch):
    names = [f"m-Q6_K-{number:05}-of-00002.gguf" for number in (1, 2)]
    for which in ("Q6_K", names[0]):
        found = Hub(tmp_path / which / "hub", path.read_bytes(), *FILES, *names)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
        with pytest.raises(CheckpointError, match="1 parts"):  # what was fetched does not call itself a part
            hub.locate(f"owner/name:{which}", ModelConfig())
        assert found.fetched() == names


@pytest.mark.parametrize(
    ("which", "words"),
    [("Q5_K_M", "the repository has none"), ("gone.gguf", "the repository has no file gone.gguf")],
)
def test_what_a_repository_lacks_is_named(path, tmp_path, monkeypatch, which, words):
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(tmp_path / "hub", b"", *FILES))
    with pytest.raises(ConfigError, match=words):
        hub.locate(f"owner/name:{which}", ModelConfig())


@pytest.mark.parametrize("name", ["owner/name:../x.gguf", "owner/na..me:Q4_0", "a b:Q4_0", "x:*"])
def test_a_name_that_is_no_repository_is_refused_without_a_download(monkeypatch, name):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("no download expected"))
    with pytest.raises(ConfigError, match="no folder"):
        hub.locate(name, ModelConfig())


def written(path: Path, architecture: str, **keys: Any) -> dict[str, Any]:
    """Contents of the folder for a file without tensors but the embedding."""
    import numpy as np

    writer = gguf.GGUFWriter(str(path), architecture)
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 16}
    for key, value in {**sizes, "attention.head_count": 2}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_epsilon", 1e-12)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "b"])
    writer.add_token_types([3, 3, 3, 3, 1, 1])
    for key, value in keys.items():
        {int: writer.add_uint32, float: writer.add_float32}[type(value)](key.replace("__", "."), value)
    writer.add_tensor("token_embd.weight", np.ones((6, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: json.loads(text) for name, text in folder_contents(open_parts(path)).items()}


@pytest.mark.parametrize(("kind", "pooled"), [(1, "mean"), (2, "first"), (3, "last")])
def test_the_pooling_of_an_embedding_model_is_kept(path, tmp_path, kind, pooled):
    written(tmp_path / "bert.gguf", "bert", bert__pooling_type=kind)
    found = sentence_transformers.read_modules(hub.resolve(str(tmp_path / "bert.gguf"), ModelConfig()))
    assert found is not None
    pooler = found.pooling.poolers["embed"]
    assert (pooler.pooling_type, pooler.activation) == (pooled, "normalize")


def test_recommended_sampling_becomes_the_default(tmp_path):
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0}
    found = written(tmp_path / "m.gguf", "qwen3", **{f"general__sampling__{key}": value for key, value in keys.items()})
    assert found["generation_config.json"] == {
        "eos_token_id": [],
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
    }
    assert found["config.json"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"qwen3__attention__head_count": 0}, "`qwen3.attention.head_count` must be above 0"),
        ({"qwen3__block_count": 1.5}, "`qwen3.block_count` must be one whole number"),
        ({"qwen3__rope__freq_base": float("inf")}, "`qwen3.rope.freq_base` must be a finite number"),
        ({"qwen3__rope__dimension_count": 3}, "`qwen3.rope.dimension_count` must be even and at most 4"),
    ],
)
def test_a_key_of_a_wrong_value_is_named(tmp_path, keys, words):
    with pytest.raises(CheckpointError, match=words):
        written(tmp_path / "m.gguf", "qwen3", **keys)
