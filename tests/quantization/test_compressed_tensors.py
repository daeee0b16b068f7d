"""Checkpoints that the compressed-tensors library wrote are read into the weights that it reads itself."""

from typing import Any

import pytest
import torch
from compressed_checkpoints import compressed, config, scheme
from quantized_tensors import Stored, dense

from quire.errors import CheckpointError


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def agree(stored: Stored) -> None:
    found = dense(stored.read())
    assert found.keys() == stored.weights.keys()
    for name, weight in stored.weights.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [16, 32, 48, None])
def test_packed_integers_by_group_and_channel(bits: int, symmetric: bool, size: int | None) -> None:
    sharing = {"strategy": "group", "group_size": size} if size else {"strategy": "channel"}
    agree(compressed(scheme(num_bits=bits, symmetric=symmetric, **sharing)))


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_integers_with_one_scale(symmetric: bool) -> None:
    agree(compressed(scheme(symmetric=symmetric, strategy="tensor")))


@pytest.mark.parametrize("format", ["int-quantized", "naive-quantized"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
def test_integers_of_eight_bits(format: str, symmetric: bool, strategy: str) -> None:
    size = {"group_size": 32} if strategy == "group" else {}
    agree(compressed(scheme(format=format, num_bits=8, symmetric=symmetric, strategy=strategy, **size)))


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize(
    "sharing", [{"strategy": "tensor"}, {"strategy": "channel"}, {"strategy": "block", "block_structure": [128, 128]}]
)
def test_floats_of_eight_bits(format: str, sharing: dict[str, Any]) -> None:
    agree(compressed(scheme(format=format, num_bits=8, type="float", **sharing), (200, 256)))


def test_scales_of_activations_belong_to_the_matrix() -> None:
    group = scheme(format="int-quantized", num_bits=8, strategy="channel")
    group["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}
    stored = compressed(group).with_tensor("a.b.input_scale", torch.tensor([0.1]))
    agree(stored)


def test_zeros_that_older_versions_stored_unpacked() -> None:
    group = scheme(symmetric=False, strategy="group", group_size=32)
    stored = compressed(group)
    words = stored.tensors["a.b.weight_zero_point"]
    zeros = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], 1).view(-1, words.shape[1])
    agree(stored.with_tensor("a.b.weight_zero_point", (zeros - 8).to(torch.int8)))


def test_inputs_in_the_order_of_their_activations() -> None:
    stored = compressed(scheme(strategy="group", group_size=32))
    groups, each = torch.randperm(96) // 32, stored.tensors["a.b.weight_scale"]
    codes = (stored.weights["a.b.weight"] / each.repeat_interleave(32, 1)).round()
    stored.weights["a.b.weight"] = codes * each[:, groups]
    agree(stored.with_tensor("a.b.weight_g_idx", groups.int()))


def test_modules_get_the_scheme_whose_targets_name_them_before_that_of_their_class() -> None:
    by_class = scheme(strategy="group", group_size=32)
    by_pattern = scheme(["re:.*mlp.*"], num_bits=8, strategy="group", group_size=48)
    by_name = scheme(["x.head"], format="float-quantized", num_bits=8, type="float", strategy="channel")
    names = ("x.attn.q_proj", "x.mlp.up_proj", "x.head")
    parts = [compressed(g, name=n) for g, n in zip((by_class, by_pattern, by_name), names, strict=True)]
    stored = Stored(config(by_class, by_pattern, by_name, ignore=["x.other"]))
    for part in parts:
        stored.tensors |= part.tensors
        stored.weights |= part.weights
    agree(stored.with_config(format="mixed-precision"))


def test_embeddings_get_the_scheme_of_their_class() -> None:
    linear, embedding = scheme(strategy="channel"), scheme(["Embedding"], num_bits=8, strategy="group", group_size=32)
    stored = Stored(config(linear, embedding))
    for part in (compressed(linear, name="x.q_proj"), compressed(embedding, name="x.embed_tokens")):
        stored.tensors |= part.tensors
        stored.weights |= part.weights
    agree(stored)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is .*sparse-24-bitmask"),
    ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ({"quantization_status": "frozen"}, "quantization_status is 'frozen'"),
    ({"config_groups": {}}, "config_groups"),
    ({"config_groups": {"g": ["Linear"]}}, "config_groups.g"),
    ({"config_groups": {"g": {"targets": "Linear", "weights": {}}}}, "targets"),
    ({"config_groups": {"g": {**scheme(), "format": "nvfp4-pack-quantized"}}}, "format is 'nvfp4-pack-quantized'"),
    ({"config_groups": {"g": {**scheme(), "format": "marlin-24"}}}, "format is 'marlin-24'"),
    ({"config_groups": {"g": {**scheme(), "output_activations": {"num_bits": 8}}}}, "output_activations"),
    ({"config_groups": {"g": scheme(num_bits=7, strategy="channel")}}, "num_bits is 7"),
    ({"config_groups": {"g": scheme(type="float", strategy="channel")}}, "floats of 4 bits"),
    ({"config_groups": {"g": scheme(strategy="group")}}, "group_size"),
    ({"config_groups": {"g": scheme(strategy="channel", group_size=32)}}, "strategy is 'channel'"),
    ({"config_groups": {"g": scheme(strategy="tensor_group", group_size=16)}}, "strategy is 'tensor_group'"),
    ({"config_groups": {"g": scheme(strategy="block")}}, "block_structure"),
    ({"config_groups": {"g": scheme(strategy="channel", symmetric="no")}}, "symmetric is 'no'"),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED)
def test_a_config_that_asks_for_more_is_refused_by_its_field(fields: dict[str, Any], sentence: str) -> None:
    stored = compressed(scheme(strategy="group", group_size=32)).with_config(**fields)
    with pytest.raises(CheckpointError, match=sentence):
        stored.read()


@pytest.mark.parametrize("pattern", [r"(?:a|aa)+b", "(("])
def test_a_pattern_that_cannot_be_matched_is_named(pattern: str) -> None:
    stored = compressed(scheme(strategy="group", group_size=32), name="a" * 200 + ".b")
    groups = {"g": scheme([f"re:{pattern}"], strategy="group", group_size=32)}
    with pytest.raises(CheckpointError, match="cannot be matched"):
        stored.with_config(config_groups=groups).read()


def test_a_module_that_no_scheme_names_is_named() -> None:
    stored = compressed(scheme(strategy="channel"))
    first, second = scheme(["x"], strategy="channel"), scheme(["y"], strategy="channel")
    with pytest.raises(CheckpointError, match=r"a.b.weight_packed: no scheme .* names a.b or its class"):
        stored.with_config(config_groups={"g": first, "h": second}).read()


def test_a_weight_that_is_stored_in_another_way_than_its_scheme_says() -> None:
    stored = compressed(scheme(strategy="channel"))
    other = scheme(format="int-quantized", num_bits=8, strategy="channel")
    with pytest.raises(CheckpointError, match=r"a.b.weight_packed: its scheme"):
        stored.with_config(config_groups={"g": other}).read()


def test_rows_that_do_not_fill_their_last_word() -> None:
    agree(compressed(scheme(strategy="channel"), (32, 90)))
