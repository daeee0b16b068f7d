"""Bytes and operations of a step from the geometry of the model, and the speed of the machine."""

import json

import pytest
import torch
from engine_rig import rig_of

from quire_bench.profiling.device_roofline import DeviceRoofline
from quire_bench.profiling.roofline import ExpertGeometry, Geometry, Heads, OpCost, TokenSpan, ideal_steps
from quire_bench.workload import BenchRequest
from quire_testing.tiny import SIZES, tiny_llama, tiny_model

# --- geometry and costs ------------------------------------------------------------------------------


def elements(folder):
    """(body, head, attention FLOPs per pair, KV values per position) by the config alone."""
    c = json.loads((folder / "config.json").read_text())
    width, heads, kv_heads, d = (
        SIZES[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    attention = width * (heads + 2 * kv_heads) * d + heads * d * width
    body = c["num_hidden_layers"] * (attention + 3 * width * c["intermediate_size"])
    blocks = c["num_hidden_layers"]
    return body, c["vocab_size"] * width, 4 * blocks * heads * d, 2 * blocks * kv_heads * d


@pytest.mark.parametrize("tied", [False, True])
def test_geometry_is_that_of_the_config(tmp_path, tied):
    folder = tiny_llama(tmp_path / "m", tie_word_embeddings=tied)
    with rig_of(folder) as rig:
        geometry = Geometry.from_model(rig.engine.loaded)
    body, head, pair_flops, kv_values = elements(folder)
    assert (geometry.body, geometry.head) == (body, head)
    assert geometry.kv_bytes_per_token == kv_values * 4
    cost = geometry.cost([TokenSpan(0, 6, False), TokenSpan(10, 1, True)])
    assert cost.flops == 2 * body * 7 + 2 * head + pair_flops * (6 * 7 / 2 + 11)
    assert cost.bytes == 4 * (body + head + kv_values * 10)


def test_the_head_is_read_only_in_steps_that_give_a_token(rig):
    geometry = Geometry.from_model(rig.engine.loaded)
    without, with_token = geometry.cost([TokenSpan(0, 4, False)]), geometry.cost([TokenSpan(0, 4, True)])
    assert with_token.bytes - without.bytes == 4 * geometry.head
    assert with_token.flops - without.flops == 2 * geometry.head


def test_a_mixture_reads_the_experts_that_tokens_reach_and_computes_those_chosen(tmp_path):
    folder = tiny_model(
        tmp_path / "m", "Qwen3MoeForCausalLM", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
    )
    with rig_of(folder) as rig:
        geometry = Geometry.from_model(rig.engine.loaded)
    expert, layers = 3 * 32 * SIZES["hidden_size"], SIZES["num_hidden_layers"]
    assert geometry.experts == ((ExpertGeometry(8, 2, expert), layers),)
    one, many = (geometry.cost([TokenSpan(0, n, False)]) for n in (1, 1000))
    assert one.bytes == pytest.approx(4 * (geometry.body + layers * 2 * expert))
    assert many.bytes == pytest.approx(4 * (geometry.body + layers * 8 * expert))
    pairs = 1000 * 1001 / 2 * 4 * layers * SIZES["num_attention_heads"] * SIZES["head_dim"]
    assert many.flops == 2 * 1000 * (geometry.body + layers * 2 * expert) + pairs


@pytest.mark.parametrize("window", [None, 1, 4, 9, 100])
@pytest.mark.parametrize("start", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_attention_counts_the_pairs_that_see_each_other(window, start, length):
    heads, span = Heads(1, 1, 1, window), TokenSpan(start, length, True)
    seen = [{i for i in range(p + 1) if window is None or p - i < window} for p in range(start, start + length)]
    assert heads.seen(span) == sum(map(len, seen))
    assert heads.earlier(span) == len({i for positions in seen for i in positions if i < start})


def test_the_fewest_steps_are_one_for_all_prompts_and_then_a_token_for_each_request():
    steps = ideal_steps([BenchRequest((0,) * 5, 3), BenchRequest((0,) * 7, 1), BenchRequest((0,) * 6, 2)], shared=0)
    assert steps[0] == [TokenSpan(0, 5, True), TokenSpan(0, 7, True), TokenSpan(0, 6, True)]
    assert steps[1:] == [[TokenSpan(5, 1, True), TokenSpan(6, 1, True)], [TokenSpan(6, 1, True)]]
    shared = ideal_steps([BenchRequest((0,) * 5, 1), BenchRequest((0,) * 7, 1)], shared=4)
    assert shared == [[TokenSpan(0, 5, True), TokenSpan(4, 3, True)]]


# --- machine -----------------------------------------------------------------------------------------


def test_a_step_takes_as_long_as_the_slower_of_reading_and_computing():
    machine = DeviceRoofline(read_bytes_per_s=10.0, flops_per_s=100.0)
    assert machine.least_s(OpCost(flops=100.0, bytes=20.0)) == 2.0
    assert machine.least_s(OpCost(flops=500.0, bytes=20.0)) == 5.0
    assert machine.reads_longer(OpCost(flops=100.0, bytes=20.0))
    assert not machine.reads_longer(OpCost(flops=500.0, bytes=20.0))
    assert machine.best(DeviceRoofline(5.0, 200.0)) == DeviceRoofline(10.0, 200.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_machine_can_be_measured(dtype):
    machine = DeviceRoofline.measure(torch.device("cpu"), dtype, num_floats=2**16, width=32)
    assert 1e6 < machine.read_bytes_per_s < 1e14
    assert 1e6 < machine.flops_per_s < 1e17
