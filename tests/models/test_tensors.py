import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from quire.errors import CheckpointError
from quire_models.loading import tensor_files as tensors

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(4, dtype=torch.bfloat16)


def write_shards(folder, suffix=".safetensors", weight_map=None):
    stem, save = ("model", save_file) if suffix == ".safetensors" else ("pytorch_model", torch.save)
    names = [f"{stem}-0000{i}-of-00002{suffix}" for i in (1, 2)]
    save({"a": A}, folder / names[0])
    save({"b": B}, folder / names[1])
    index = weight_map if weight_map is not None else {"a": names[0], "b": names[1]}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"weight_map": index}))
    return names


def check(found):
    assert dict(found) == {"a": (2, 3), "b": (4,)}
    assert torch.equal(found.read("a"), A)
    assert torch.equal(found.read("b"), B)
    assert found.read("b").dtype == torch.bfloat16


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_one_file_and_shards_give_the_same_tensors(tmp_path, suffix):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir(), many.mkdir()
    if suffix == ".bin":
        torch.save({"a": A, "b": B}, one / "pytorch_model.bin")
    else:
        save_file({"a": A, "b": B}, one / "model.safetensors")
    write_shards(many, suffix)
    check(tensors.find(one))
    check(tensors.find(many))


def test_files_of_torch_before_zip_are_read(tmp_path):
    torch.save({"a": A, "b": B}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    check(tensors.find(tmp_path))


def test_a_file_of_any_name_is_found_but_not_an_adapter_or_another_layout(tmp_path):
    save_file({"x": A}, tmp_path / "adapter_model.safetensors")
    save_file({"x": A}, tmp_path / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match="no weights"):
        tensors.find(tmp_path)
    save_file({"a": A, "b": B}, tmp_path / "demo.safetensors")
    check(tensors.find(tmp_path))


def test_safetensors_are_preferred_and_the_load_format_wins(tmp_path):
    save_file({"a": A}, tmp_path / "model.safetensors")
    torch.save({"b": B}, tmp_path / "pytorch_model.bin")
    assert list(tensors.find(tmp_path)) == ["a"]
    assert list(tensors.find(tmp_path, "pt")) == ["b"]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors"):
        tensors.find(tmp_path, "safetensors")


def test_a_missing_shard_is_named(tmp_path):
    names = write_shards(tmp_path)
    (tmp_path / names[1]).unlink()
    with pytest.raises(CheckpointError, match=f"lacks the shard {names[1]}"):
        tensors.find(tmp_path)


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path):
    names = write_shards(tmp_path)
    write_shards(tmp_path, weight_map={"a": names[0], "c": names[0]})
    with pytest.raises(CheckpointError, match=r"lists 'c' in .*, which does not have it"):
        tensors.find(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    save_file({"a": A}, tmp_path / "x.safetensors")
    save_file({"a": A}, tmp_path / "y.safetensors")
    with pytest.raises(CheckpointError, match="more than one file"):
        tensors.find(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_corrupt_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="not an index"):
        tensors.find(tmp_path)


def test_an_index_cannot_point_outside_its_folder(tmp_path):
    write_shards(tmp_path, weight_map={"a": "../model.safetensors"})
    with pytest.raises(CheckpointError, match="outside its folder"):
        tensors.find(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 20, 90])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_named(tmp_path, name, keep):
    save = save_file if name.endswith("safetensors") else torch.save
    save({"a": A}, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) * keep // 100])
    with pytest.raises(CheckpointError, match=name):
        tensors.find(tmp_path)


def test_a_file_of_noise_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        tensors.find(tmp_path)


class Bomb:
    def __reduce__(self):
        return print, ("boom",)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, capsys):
    torch.save({"a": Bomb()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than tensors"):
        tensors.find(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(CheckpointError, match="more than tensors"):
        tensors.find(tmp_path)
    assert "boom" not in capsys.readouterr().out


@pytest.mark.parametrize("state", [[A], {"a": 3}])
def test_a_file_that_maps_no_names_to_tensors_is_refused(tmp_path, state):
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="map from names to tensors"):
        tensors.find(tmp_path)
