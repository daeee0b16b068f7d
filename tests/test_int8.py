"""Weights as bytes, and keys and values as bytes: products, pages, engines, settings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import greedy, random_ids, related_prompts, rig_of
from torch import Tensor

from quire import cli, registry
from quire.config import ModelConfig
from quire.engine.load import load_model
from quire.errors import ConfigError
from quire.records import OpQuery, Quantization, Registry
from quire.testing.tiny import tiny_llama
from quire_kernels import int8, int8_pages, reference, select
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.recorded import Program, Recorded
from quire_kernels.ops import Rows
from quire_models.pool import KvPool

HERE = {found.name: found for found in isa.available()} if build.compiler() else {}
FLOATS = (torch.float32, torch.bfloat16)


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(load(HERE[request.param]))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


# --- bytes and their scales ----------------------------------------------------------------------------


def test_a_vector_is_bytes_times_a_scale_and_the_largest_becomes_127() -> None:
    whole, scale = int8.quantise(torch.tensor([[2.0, -4.0, 0.0, 1.0], [0.0] * 4, [1e-38] * 4]))
    assert whole.tolist() == [[64, -127, 0, 32], [0] * 4, [0] * 4]
    torch.testing.assert_close(scale[:, 0], torch.tensor([4 / 127, 0.0, 0.0]))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row_and_no_other(wrong: float) -> None:
    x = torch.ones(3, 70)
    x[1, 69] = wrong
    y = reference.linear_int8(torch.ones(5, 70), None)(x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[[0, 2]], torch.full((2, 5), 70.0))


# --- products ------------------------------------------------------------------------------------------

MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (2, 3), (70, 33), (48, 1537), (130, 576)]
"""(outputs, inputs): multiples of a panel's 32 and 64 and others; one whose rows take more than one block."""
COUNTS = (1, 2, 3, 4, 5, 11, 12, 13, 16, 17, 31, 32, 33, 65, 200)


@cache
def factors(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(outputs, inputs, generator=made), torch.randn(outputs, generator=made)
    return weight.to(dtype), bias.to(dtype), torch.randn(max(COUNTS), inputs, generator=made).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_the_reference_to_the_last_bit_among_any_number_of_rows(
    cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, bias, x = factors(*shape, dtype)
    want = reference.linear_int8(weight, None)(x, True)
    for gated in (False, True):
        product = cpp.linear_int8(weight, None, gated)
        for count in COUNTS:
            assert torch.equal(product(x[:count], True), want[:count]), (gated, count)
            assert torch.equal(product(x[-count:]), want[-count:].to(dtype)), (gated, count)
        added = cpp.linear_int8(weight, bias, gated)(x, True)
        torch.testing.assert_close(added, want + bias.float(), atol=1e-5, rtol=1e-5)


def test_a_product_is_near_that_of_the_original_weight(cpp: CpuOps) -> None:
    weight, bias, x = factors(130, 576, torch.float32)
    exact = reference.linear(weight, bias)(x)
    off = (cpp.linear_int8(weight, bias)(x) - exact).norm() / exact.norm()
    assert 0.001 < off < 0.015, "a step is 1/127 of the largest: about one hundredth of a usual element"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gated", [False, True])
def test_packed_bytes_give_the_weight_back_as_they_have_it(cpp: CpuOps, gated: bool, dtype: torch.dtype) -> None:
    weight = factors(100, 70, dtype)[0]
    want, ids = reference.linear_int8(weight, None), torch.tensor([99, 0, 50, 49, 31])
    product = cpp.linear_int8(weight, None, gated)
    assert torch.equal(product.unpacked(), want.unpacked())
    assert torch.equal(product.unpacked(ids), want.unpacked(ids))
    assert (want.unpacked() - weight).abs().max() < weight.abs().max() / 127


@pytest.mark.parametrize("dtype", FLOATS)
def test_bytes_of_x_may_come_from_anywhere_and_from_nowhere(cpp: CpuOps, dtype: torch.dtype) -> None:
    weight, bias, x = factors(33, 65, dtype)
    product = cpp.linear_int8(weight, bias)
    want = product(x)
    assert torch.equal(product(x.T.contiguous().T), want)
    wide = torch.full((len(x), 200), torch.nan, dtype=dtype)
    wide[:, 7:72] = x
    assert torch.equal(product(wide[:, 7:72]), want)
    assert product(x[:0]).shape == (0, 33)
    with pytest.raises(ValueError, match=r"takes \[..., 65\]"):
        product(x[:, :64])


def test_a_row_that_is_not_finite_gives_nan_alone(cpp: CpuOps) -> None:
    weight, _, x = factors(96, 64, torch.float32)
    for count in (3, 40):
        some = x[:count].clone()
        some[1, 5] = torch.inf
        y = cpp.linear_int8(weight, None)(some)
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], cpp.linear_int8(weight, None)(x[[0, 2]]))


# --- pages ---------------------------------------------------------------------------------------------


def rows_of(lens: list[int], contexts: list[int], page_size: int) -> tuple[Rows, Tensor, int]:
    """Rows with scattered pages, the slots of all their positions, and how many pages there are."""
    most = max(-(-context // page_size) for context in contexts)
    table = torch.from_numpy(np.random.default_rng(0).permutation(most * len(lens)).reshape(len(lens), most)).int()
    slots = [
        table[r, torch.arange(c) // page_size] * page_size + torch.arange(c) % page_size for r, c in enumerate(contexts)
    ]
    starts = torch.from_numpy(np.cumsum([0, *lens], dtype=np.int32))
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    rows = Rows(starts, torch.from_numpy(host[1]), table, *host, max(lens), max(contexts))
    return rows, torch.cat(slots).long(), most * len(lens)


def pools(pages: int, page_size: int, heads: int, dim: int, fill: int = 0) -> tuple[Tensor, ...]:
    return tuple(
        torch.full((pages, page_size, heads, dim + int8.SCALE_BYTES), fill, dtype=torch.int8) for _ in range(2)
    )


STEPS = [([1], [1]), ([1, 1, 1], [1, 15, 300]), ([13], [13]), ([5, 1, 70], [5, 129, 200])]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4, 16), (6, 2, 24), (9, 3, 64), (8, 1, 128)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (None, 5.0)])
def test_attention_to_bytes_is_that_of_plain_torch(
    cpp: CpuOps, heads: tuple[int, int, int], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    count, kv_heads, dim = heads
    for lens, contexts in STEPS:
        rows, slots, pages = rows_of(lens, contexts, 32)
        q = torch.randn(sum(lens), count, dim).to(dtype)
        k, v = torch.randn(2, len(slots), kv_heads, dim).to(dtype)
        found = []
        for module, fill in ((cpp, -1), (int8_pages, 0)):  # four bytes of -1 are no number
            k_pool, v_pool = pools(pages, 32, kv_heads, dim, fill)
            module.write_kv(k, v, k_pool, v_pool, slots)
            found.append(module.paged_attention(q, k_pool, v_pool, rows, dim**-0.5, window, softcap))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_to_bytes_is_near_attention_to_what_they_stand_for(dtype: torch.dtype) -> None:
    rows, slots, pages = rows_of([5, 1, 70], [5, 129, 200], 16)
    q, (k, v) = torch.randn(76, 6, 32).to(dtype), torch.randn(2, len(slots), 2, 32).to(dtype)
    plain, made = torch.zeros(2, pages, 16, 2, 32, dtype=dtype), pools(pages, 16, 2, 32)
    reference.write_kv(k, v, *plain, slots)
    int8_pages.write_kv(k, v, *made, slots)
    want = reference.paged_attention(q, *plain, rows, 32**-0.5)
    got = int8_pages.paged_attention(q, *made, rows, 32**-0.5)
    assert 0 < (got - want).norm() / want.norm() < 0.02


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_keys_are_stored_as_bytes(cpp: CpuOps, interleaved: bool, dtype: torch.dtype) -> None:
    rows, slots, pages = rows_of([40], [40], 16)
    q, angles = torch.randn(40, 4, 24).to(dtype), torch.randn(40, 12)
    k, v = torch.randn(2, 40, 2, 24).to(dtype)
    found = []
    for module in (cpp, int8_pages):
        made = pools(pages, 16, 2, 24)
        arguments = q.clone(), k.clone(), v, angles.cos(), angles.sin(), *made, slots, interleaved
        found.append(module.paged_attention(module.rotary_write_kv(*arguments), *made, rows, 0.2))
    torch.testing.assert_close(found[0], found[1], atol=2e-2, rtol=2e-2)


def test_a_row_is_the_same_alone_and_among_others_and_in_pages_that_were_copied(cpp: CpuOps) -> None:
    lens, contexts = [1, 33, 1], [70, 100, 17]
    rows, slots, pages = rows_of(lens, contexts, 16)
    q, (k, v) = torch.randn(35, 6, 64).bfloat16(), torch.randn(2, len(slots), 2, 64).bfloat16()
    made = pools(2 * pages, 16, 2, 64)
    cpp.write_kv(k, v, *made, slots)
    together = cpp.paged_attention(q, *made, rows, 0.125)
    kv = KvPool((made[0],), (made[1],), 16)
    kv.copy([(page, page + pages) for page in range(pages)])
    made[0][:pages], made[1][:pages] = 0, 0
    start = 0
    for r, (length, context) in enumerate(zip(lens, contexts, strict=True)):
        host = np.array([length], np.int32), np.array([context], np.int32)
        ends = torch.tensor([0, length], dtype=torch.int32)
        one = Rows(ends, torch.from_numpy(host[1]), rows.pages[r : r + 1] + pages, *host, length, context)
        alone = cpp.paged_attention(q[start : start + length], *made, one, 0.125)
        assert torch.equal(alone, together[start : start + length]), r
        start += length


def decoding(dim: int, contexts: list[int]) -> tuple[Rows, Tensor, Tensor, Tensor, tuple[Tensor, ...], Tensor]:
    """A step of one token a row, three heads to a key-value head: rows, q, k, v, pools and the slots of k and v."""
    rows, slots, pages = rows_of([1] * len(contexts), contexts, 16)
    q = torch.randn(len(contexts), 6, dim).bfloat16()
    k, v = torch.randn(2, len(slots), 2, dim).bfloat16()
    return rows, q, k, v, pools(pages, 16, 2, dim, -1), slots


@pytest.mark.parametrize("dim", [4, 20, 64, 80])
def test_few_lines_lose_nothing_but_what_bytes_lose(cpp: CpuOps, dim: int) -> None:
    rows, q, k, v, made, slots = decoding(dim, [1, 64, 301])
    q[1] *= 1000.0  # one position outweighs all others
    cpp.write_kv(k, v, *made, slots)
    plain = torch.zeros(2, int(rows.pages.max()) + 1, 16, 2, dim)
    whole = [int8.dequantise(*int8.quantise(x), torch.float32) for x in (k, v)]
    reference.write_kv(*whole, *plain, slots)
    want = reference.paged_attention(q.float(), *plain, rows, dim**-0.5)
    multiplied = "avx512_vnni" in cpp.library.isa.needs
    atol, rtol = (1e-3, 2**-8) if multiplied else (1e-2, 2**-7)  # otherwise weights are bfloat16
    torch.testing.assert_close(cpp.paged_attention(q, *made, rows, dim**-0.5).float(), want, atol=atol, rtol=rtol)


def test_what_is_not_finite_stays_with_its_row(cpp: CpuOps) -> None:
    for which in range(3):
        rows, q, k, v, made, slots = decoding(64, [70, 70, 70])
        cpp.write_kv(k, v, *made, slots)
        whole = cpp.paged_attention(q, *made, rows, 0.125)
        (q, k, v)[which][1 if which == 0 else 75] = torch.inf
        cpp.write_kv(k, v, *made, slots)
        found = cpp.paged_attention(q, *made, rows, 0.125)
        assert found[1].isnan().all()
        assert torch.equal(found[[0, 2]], whole[[0, 2]])


def test_a_query_of_zeros_gives_the_mean_of_all_values(cpp: CpuOps) -> None:
    rows, q, k, v, made, slots = decoding(64, [50])
    cpp.write_kv(k, v, *made, slots)
    mean = v.float().mean(0).repeat_interleave(3, 0)
    torch.testing.assert_close(cpp.paged_attention(0 * q, *made, rows, 0.125)[0].float(), mean, atol=1e-2, rtol=1e-2)


def test_pools_of_bytes_take_little_more_than_half_of_bfloat16() -> None:
    from quire_models.parts import KvShape

    shapes = [KvShape(3, 64), KvShape(1, 32)]
    pool = KvPool.allocate(shapes, 5, 16, torch.int8, "cpu")
    assert [tuple(k.shape) for k in pool.k] == [(5, 16, 3, 68), (5, 16, 1, 36)]
    size = KvPool.page_bytes(shapes, 16, torch.int8)
    assert size * 5 == sum(t.numel() * t.element_size() for t in (*pool.k, *pool.v))
    assert size / KvPool.page_bytes(shapes, 16, torch.bfloat16) == pytest.approx(0.5 * (3 * 68 + 36) / (3 * 64 + 32))


# --- selection -----------------------------------------------------------------------------------------

PAGED = ("paged_attention", *select.STORES)


def test_pages_of_bytes_are_left_to_implementations_that_know_them() -> None:
    chosen = {c.op: c for c in select.choose(OpQuery("cpu", "float16", kv_dtype="int8")).report}
    assert {chosen[op].name for op in PAGED} == {"torch-int8"}
    why = {r.name: r.reason for r in chosen["paged_attention"].rejected}
    assert why["torch"] == "it keeps keys and values as auto, not int8"
    plain = {c.op: c for c in select.choose(OpQuery("cpu", "float16")).report}
    assert {plain[op].name for op in PAGED} == {"torch"}


@pytest.mark.skipif(not HERE, reason="there is no compiler, or no instruction set for the C++ ops")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpp_ops_know_bytes(dtype: str) -> None:
    chosen = {c.op: c.name for c in select.choose(OpQuery("cpu", dtype, kv_dtype="int8")).report}
    assert {chosen[op] for op in (*PAGED, "linear_int8", "blocks")} == {f"cpp-{isa.available()[0].name}"}


# --- models and engines --------------------------------------------------------------------------------

BYTES: dict[str, dict[str, Any]] = {
    "weights": {"quantization": "int8"},
    "kv": {"kv_cache_dtype": "int8"},
    "both": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("int8") / "tiny", seed=3)


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None)


@pytest.mark.skipif(not HERE, reason="there is no compiler, or no instruction set for the C++ ops")
@pytest.mark.parametrize("ways", BYTES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_blocks_give_what_the_blocks_give(folder: Path, plugins: Registry, ways: str, dtype: str) -> None:
    from quire_models.testing import Driver, Piece

    logits = []
    for recorded in (True, False):
        loaded = load_model(ModelConfig(model=str(folder), device="cpu", dtype=dtype, **BYTES[ways]), plugins)
        if not recorded:
            loaded.module.ops = replace(loaded.ops, blocks=reference.blocks)
        driver = Driver(loaded.module, loaded.decoder, [range(10, 60), range(100, 133)])
        pages = driver.kv.num_pages
        driver.kv = KvPool.allocate(loaded.decoder.kv_shapes, pages, 16, loaded.kv_dtype, "cpu")
        steps = [[Piece(0, 20)], [Piece(0, 1), Piece(1, 33)], [Piece(0, 29)]]
        with torch.inference_mode():
            logits.append([part for step in steps for part in driver.step(step)])
        run = loaded.module._run
        whole = isinstance(run, Recorded) and [isinstance(piece, Program) for piece in run.pieces] == [True]
        assert whole == recorded
    for ours, theirs in zip(*logits, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("ways", BYTES)
@pytest.mark.parametrize("page_size", [4, 16])
def test_an_engine_answers_alone_as_in_company_in_every_way(
    folder: Path, plugins: Registry, ways: str, page_size: int
) -> None:
    prompts = related_prompts(6)
    plain = {"page_size": page_size, **BYTES[ways]}
    with rig_of(folder, plugins, max_num_batched_tokens=64, enable_prefix_caching=False, **plain) as rig:
        alone = [rig.tokens([prompt], greedy(12, ignore_eos=True))[0] for prompt in prompts]
        assert rig.tokens(prompts, greedy(12, ignore_eos=True)) == alone
    tight = {"num_pages": 160 // page_size, "max_model_len": 80, "max_num_batched_tokens": 13}
    for preemption in ({"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}):
        with rig_of(folder, plugins, **tight, **preemption, **plain) as rig:
            assert rig.tokens(prompts * 2, greedy(12, ignore_eos=True)) == alone * 2
            stats = rig.engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0
            assert rig.tokens(prompts, greedy(12, ignore_eos=True)) == alone, "with pages of the first time"


@pytest.mark.parametrize("ways", BYTES)
def test_all_kinds_of_requests_run(folder: Path, plugins: Registry, ways: str) -> None:
    from quire.sampling import BeamSearchParams, SamplingParams

    kinds = [
        {"temperature": 1.0, "seed": 5, "top_k": 40, "top_p": 0.95},
        {"n": 2, "temperature": 0.9, "seed": 6},
        {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0, "presence_penalty": 1.5, "allowed_token_ids": tuple(range(32, 127))},
    ]
    rng = random.Random(1)
    with rig_of(folder, plugins, **BYTES[ways]) as rig:
        for kind in kinds:
            rig.add(random_ids(rng, 20), SamplingParams(max_tokens=8, ignore_eos=True, **kind))
        rig.add(random_ids(rng, 20), BeamSearchParams(beam_width=3, max_tokens=8))
        answers = rig.drain()
    assert len(answers) == 4 + 1 + 3
    assert all(answer.last.finish_reason in ("stop", "length") for answer in answers.values())


@pytest.mark.parametrize("ways", BYTES)
def test_answers_stay_near_those_without_bytes(folder: Path, plugins: Registry, ways: str) -> None:
    prompt = related_prompts(1)[0]
    first = []
    for settings in ({}, BYTES[ways]):
        with rig_of(folder, plugins, **settings) as rig:
            request = rig.add(prompt, greedy(1, logprobs=5))
            first.append(dict(rig.drain()[request, 0].logprobs[0].top))
    same = first[0].keys() & first[1].keys()
    assert len(same) >= 4
    assert 0 < max(abs(first[0][i] - first[1][i]) for i in same) < 0.3


def test_quantised_models_let_go_of_their_weights_but_for_mixtures_and_norms(folder: Path, plugins: Registry) -> None:
    loaded = load_model(ModelConfig(model=str(folder), device="cpu", quantization="int8"), plugins)
    block = loaded.module.blocks[0]
    for projection in (block.attn.qkv, block.attn.o, block.mlp.gate_up, block.mlp.down, loaded.module.head):
        projection.prepare()
        assert projection.weight.numel() == 0
        assert hasattr(projection.multiply, "unpacked")
    assert block.attn_in.weight.numel() == 64


# --- settings ------------------------------------------------------------------------------------------


def test_an_unknown_quantization_lists_those_there_are(folder: Path, plugins: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^--quantization int3: there is no such quantization. Installed: int8\.$"):
        load_model(ModelConfig(model=str(folder), device="cpu", quantization="int3"), plugins)


def test_a_quantization_that_cannot_run_says_why(folder: Path, plugins: Registry) -> None:
    picky = Quantization("picky", lambda ops: ops.linear, lambda query: f"it dislikes {query.dtype}")
    found = replace(plugins, records={**plugins.records, "quire_quantizations": {"picky": picky}})
    with pytest.raises(
        ConfigError, match=r"^--quantization picky cannot run in float32 on cpu: it dislikes float32\.$"
    ):
        load_model(ModelConfig(model=str(folder), device="cpu", quantization="picky"), found)
    bundled: Quantization = plugins.of("quire_quantizations")["int8"]
    assert bundled.supports(OpQuery("cpu", "bfloat16")) is None
    assert bundled.supports(OpQuery("cuda", "bfloat16")) == "its products are for CPUs, not cuda"


def test_an_unknown_type_of_cache_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype must be one of auto, int8; got 'fp8'"):
        ModelConfig(kv_cache_dtype="fp8")
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    printed = capsys.readouterr().out
    assert "--quantization" in printed
    assert "--kv-cache-dtype {auto,int8}" in printed
