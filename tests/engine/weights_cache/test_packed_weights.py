"""Models that come from a cached file are the models that were packed; files that cannot be used are not."""

from __future__ import annotations

import gc
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from quire.engine.loading.load import LoadedModel, load_model
from quire.engine.weights_cache import format as layout
from quire.engine.weights_cache.writer import NotWritten, PackedWriter, stored_matrices
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_kernels.cpu.isa import available
from quire_models.loading.tensor_files import TensorFiles

pytestmark = pytest.mark.skipif(not available(), reason="this machine has no C++ ops")

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
PLUGINS = registry.load(["qwen", "int8", "int4"])


@dataclass
class Loads:
    """Loads a model with a cache. read: names of the tensors that the last load has read of the checkpoint."""

    folder: Path
    cache: Path
    read: list[str]

    def __call__(self, **changes: Any) -> LoadedModel:
        self.read.clear()
        config = ModelConfig(
            **{"model": str(self.folder), "weights_cache": str(self.cache), "device": "cpu", **changes}
        )
        loaded = load_model(config, PLUGINS)
        for thread in threading.enumerate():
            if thread.name == "weights-writer":
                thread.join()
        return loaded

    @property
    def reads_matrices(self) -> bool:
        """Whether the last load has read some of those that the cache should have."""
        return any("proj.weight" in name or "lm_head" in name for name in self.read)

    @property
    def file(self) -> Path:
        (found,) = self.cache.glob("*.weights")
        return found


def save(folder: Path, name: str) -> None:
    torch.manual_seed(0)
    if name == "mixture":
        model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=name == "tied"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()  # transformers initializes them as zeros
    model.to(torch.bfloat16).save_pretrained(folder)


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads(tmp_path / "model", tmp_path / "cache", [])
    read = TensorFiles.read

    def noting(self: TensorFiles, name: str) -> Tensor:
        found.read.append(name)
        return read(self, name)

    monkeypatch.setattr(TensorFiles, "read", noting)
    save(found.folder, "plain")
    return found


def tensors(loaded: LoadedModel) -> Iterator[tuple[str, Tensor]]:
    """All that a step multiplies by: parameters, and matrices in place of parameters with their products."""
    yield from loaded.module.named_parameters()
    for path, module in loaded.module.named_modules():
        packed: Any = getattr(module, "packed_matrices", tuple)
        for i, matrix in enumerate(packed()):
            yield f"{path}.{i}", matrix.unpacked()
            x = torch.linspace(-1, 1, matrix.inputs, dtype=matrix.dtype)[None]
            yield f"{path}.{i}.product", matrix(x)


def assert_same(got: LoadedModel, want: LoadedModel) -> None:
    ours, theirs = dict(tensors(got)), dict(tensors(want))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name", ["plain", "tied", "mixture"])
def test_a_second_load_has_the_same_weights_and_reads_no_matrices(loads, name, quantization, dtype):
    save(loads.folder, name)
    first = loads(dtype=dtype, quantization=quantization)
    assert loads.reads_matrices
    second = loads(dtype=dtype, quantization=quantization)
    assert not loads.reads_matrices
    assert_same(second, first)
    assert any(stored_matrices(module) for module in second.module.modules())


def test_without_the_setting_no_file_is_written(loads):
    loads(weights_cache=None)
    assert not loads.cache.exists()


@pytest.mark.parametrize("change", ["content", "config", "quantization"])
def test_what_the_weights_depend_on_has_a_file_of_its_own(loads, change):
    loads()
    changes: dict[str, Any] = {}
    if change == "content":  # one byte, and the file's modification time is as before
        path = loads.folder / "model.safetensors"
        status, content = path.stat(), bytearray(path.read_bytes())
        content[-40_001] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "config":
        path = loads.folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 0.5}))
    else:
        changes = {"quantization": "int8"}
    changed = loads(**changes)
    assert loads.reads_matrices
    assert len(list(loads.cache.glob("*"))) == 2
    assert_same(changed, loads(**changes, weights_cache=None))


def test_the_file_used_least_recently_is_deleted_first(loads):
    loads()
    first, size = loads.file, loads.file.stat().st_size
    loads(max_model_len=32, dtype="float32", weights_cache_bytes=4 * size)
    (second,) = set(loads.cache.glob("*")) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    loads()  # uses the first
    room = second.stat().st_size + size
    loads(quantization="int8", weights_cache_bytes=room)
    assert first.exists()
    assert not second.exists()
    loads(quantization="int4", weights_cache_bytes=size // 8)
    assert len(list(loads.cache.glob("*"))) == 2  # too large to be written


@pytest.mark.parametrize("damage", ["header", "content", "end", "empty", "folder", "link", "written by others"])
def test_a_file_that_cannot_be_used_is_replaced(loads, damage, caplog):
    first = loads()
    path = loads.file
    content = bytearray(path.read_bytes())
    if damage in ("header", "content"):
        content[100 if damage == "header" else -3000] ^= 4
    elif damage in ("end", "empty"):
        del content[-100 if damage == "end" else 0 :]
    path.write_bytes(content)
    if damage == "written by others":
        path.chmod(0o666)
    elif damage in ("folder", "link"):
        path.rename(loads.folder / "elsewhere")
        path.mkdir() if damage == "folder" else path.symlink_to(loads.folder / "elsewhere")
    second = loads()
    assert loads.reads_matrices
    assert "are not used" in caplog.text
    assert_same(second, first)
    if damage != "folder":
        loads()
        assert not loads.reads_matrices


def rewrite(path: Path, change: Callable[[dict[str, Any], bytearray], None]) -> None:
    """Change the header, as JSON, or the tensors of a file, and make all checksums right again."""
    content = path.read_bytes()
    length, count, _ = layout.decode_prelude(content[: layout.PRELUDE_BYTES])
    header = json.loads(content[layout.PRELUDE_BYTES :][:length])
    body = bytearray(content[layout.aligned(layout.PRELUDE_BYTES + length + 4 * count) :])
    change(header, body)
    text = json.dumps(header).encode()
    start = layout.PRELUDE_BYTES + len(text) + 4 * count
    at, sums = 0, []
    for size in SPANS[path]:  # no tensor has several blocks here
        sums.append(zlib.crc32(body[at : at + size]))
        at = layout.aligned(at + size)
    checksums = b"".join(each.to_bytes(4, "little") for each in sums)
    prelude = layout.encode_prelude(text, checksums)
    path.write_bytes(prelude + text + checksums + bytes(layout.aligned(start) - start) + body)


SPANS: dict[Path, list[int]] = {}
"""Bytes of the tensors of each file that tests rewrite."""


def spans(loaded: LoadedModel) -> list[int]:
    found = [matrix for module in loaded.module.modules() for _, matrix in stored_matrices(module)]
    return [tensor.nbytes for matrix in found for tensor in matrix.tensors.values()]


@pytest.mark.parametrize("field", ["numbers", "outputs", "path", "kind", "identity", "tensors"])
def test_a_header_that_names_something_else_is_refused(loads, field):
    first = loads(quantization="int4")
    SPANS[loads.file] = spans(first)

    def change(header: dict[str, Any], _: bytearray) -> None:
        module = header["modules"][1]
        matrix = module["matrices"][0]
        if field == "numbers":
            matrix["numbers"]["groups"] *= 2
        elif field == "outputs":
            matrix["outputs"] += 32
        elif field == "path":
            module["path"] = header["modules"][0]["path"]
        elif field == "kind":
            matrix["kind"] = "packed"
        elif field == "identity":
            header["identity"]["dtype"] = "torch.float32"
        else:
            matrix["tensors"].pop()

    rewrite(loads.file, lambda *_: None)
    loads(quantization="int4")
    assert not loads.reads_matrices, "a file rewritten without a change is used"
    rewrite(loads.file, change)
    assert_same(loads(quantization="int4"), first)
    assert loads.reads_matrices


@pytest.mark.parametrize("position", [0xFFFFFFFE, 4096, 5])
def test_rare_values_outside_of_their_panel_are_refused(loads, position):
    """Each compressed panel begins with a list of positions that C++ writes to."""
    first = loads()
    SPANS[loads.file] = spans(first)

    def change(header: dict[str, Any], body: bytearray) -> None:
        assert header["modules"][0]["matrices"][0]["numbers"]["head"] >= 64
        body[:4] = position.to_bytes(4, "little")
        body[8:12] = position.to_bytes(4, "little")
        body[16:64] = b"\0" * 48 if position != 5 else b"\xff" * 48

    rewrite(loads.file, change)
    assert_same(loads(), first)
    assert loads.reads_matrices


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_bytes_changes_weights(loads, packed_once, data):
    first, name, content = packed_once
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(content) - 1)) :]
    (loads.cache / name).write_bytes(changed)
    assert_same(loads(), first)


@pytest.fixture
def packed_once(loads: Loads) -> tuple[LoadedModel, str, bytes]:
    """A model, and the name and the content of its file."""
    return loads(), loads.file.name, loads.file.read_bytes()


def test_a_model_that_is_gone_is_not_written(loads):
    config = ModelConfig(model=str(loads.folder), weights_cache=None, device="cpu")
    loaded = load_model(config, PLUGINS)
    writer = PackedWriter(loaded.module, {})
    assert writer.num_bytes > 0
    del loaded
    gc.collect()
    loads.cache.mkdir()
    with pytest.raises(NotWritten):
        writer.write(loads.cache / "file")
