"""How implementations of ops are chosen, and who is passed over for which reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from quire.records import OpImpl, OpQuery
from quire_kernels import ops, reference, select
from quire_kernels.cpu import build, implementations, isa, library
from quire_kernels.pytorch import ops as torch_ops

CPU = OpQuery(device="cpu", dtype="float32")
PAGED = ("paged_attention", "write_kv", "rotary_write_kv")
needs_cpp = pytest.mark.skipif(
    not (isa.available() and build.compiler()), reason="there is no compiler, or no instruction set for the C++ ops"
)


def impl(name: str, priority: int, reason: str | None = None, load: Callable[[], Any] | None = None) -> OpImpl:
    return OpImpl(name, "act", lambda _: reason, load or (lambda: reference.act), priority)


def paged(name: str, op: str, layout: str, reason: str | None = None) -> OpImpl:
    return OpImpl(name, op, lambda _: reason, lambda: getattr(reference, op), 50, layout)


def report(query: OpQuery = CPU, offered: Sequence[tuple[str, OpImpl]] = ()) -> dict[str, select.Choice]:
    return {choice.op: choice for choice in select.choose(query, offered).report}


def reasons(choice: select.Choice) -> dict[str, str]:
    return {rejected.name: rejected.reason for rejected in choice.rejected}


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What was loaded before is forgotten, during the test and after it."""
    caches = (implementations.shared_ops, implementations._sampling, implementations._library_or_error)
    for each in (*caches, library.load, build.compiler):
        each.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for each in (*caches, library.load, build.compiler):
        each.cache_clear()


def test_the_table_and_the_chosen_ops_have_the_same_names() -> None:
    assert [f.name for f in fields(select.Ops) if f.name != "report"] == list(ops.TABLE)
    assert set(torch_ops.__all__) <= set(ops.TABLE)
    assert {*implementations.OPS, *implementations.SAMPLING} <= set(ops.TABLE)
    assert set(implementations.PAGED) == {"paged_attention", *select.STORES, "read_kv"}
    for name in ops.TABLE:
        assert callable(getattr(reference, name))


def test_every_op_is_documented_with_shapes() -> None:
    for name, protocol in ops.TABLE.items():
        assert protocol.__doc__, name
        assert 2 <= len(protocol.__doc__.strip().splitlines()) <= 10, name


def test_the_highest_priority_that_supports_the_query_wins_and_the_others_have_reasons() -> None:
    mine = impl("mine", 10)
    offered = [("p", impl("cuda only", 30, "needs a GPU")), ("q", impl("slower", 5)), ("r", mine)]
    act = report(CPU, offered)["act"]
    assert (act.name, act.plugin) == ("mine", "r")
    why = reasons(act)
    assert why["cuda only"] == "needs a GPU"
    assert why["slower"] == "mine has a higher priority"
    assert why["reference"] == "mine has a higher priority"


def test_an_implementation_that_fails_to_load_is_passed_over_with_its_error() -> None:
    def broken() -> Any:
        raise OSError("no such library")

    plain, act = report()["act"], report(CPU, [("p", impl("native", 10, load=broken))])["act"]
    assert (act.name, act.plugin) == (plain.name, plain.plugin)
    assert act.rejected[0].reason == "it could not be loaded: OSError: no such library"


def test_an_implementation_of_an_unknown_op_is_refused_with_the_names_there_are() -> None:
    stray = OpImpl("x", "softmax", lambda _: None, lambda: reference.act)
    with pytest.raises(ValueError, match=r"'p' implements an op 'softmax'.*rms_norm"):
        select.choose(CPU, [("p", stray)])


def test_reference_ops_are_all_references() -> None:
    assert {choice.name for choice in select.reference().report} == {"reference"}


# --- layouts of pages: attention and what stores for it must agree -------------------------------------


def test_attention_of_another_layout_is_chosen_together_with_what_stores_for_it() -> None:
    chosen = report(CPU, [("p", paged(f"turned {op}", op, "turned")) for op in PAGED])
    assert [chosen[op].name for op in PAGED] == [f"turned {op}" for op in PAGED]


@pytest.mark.parametrize("missing", select.STORES)
@pytest.mark.parametrize("reason", [None, "not here"])
def test_attention_whose_pages_nothing_stores_is_passed_over(missing: str, reason: str | None) -> None:
    offered = [("p", paged(f"turned {op}", op, "turned")) for op in PAGED if op != missing]
    if reason:
        offered.append(("p", paged("no use", missing, "turned", reason)))
    before, chosen = report(), report(CPU, offered)
    assert [chosen[op].name for op in PAGED] == [before[op].name for op in PAGED]
    why = reasons(chosen["paged_attention"])["turned paged_attention"]
    assert why.startswith("its pages are turned, and no implementation stores that layout: ")
    assert reason is None or f"no use: {reason}" in why
    stores = next(op for op in select.STORES if op != missing)
    assert reasons(chosen[stores])[f"turned {stores}"].startswith("its pages are turned, but paged_attention reads ")


def test_stores_of_a_layout_that_attention_does_not_have_are_passed_over() -> None:
    before, chosen = report(), report(CPU, [("p", paged("turned", "write_kv", "turned"))])
    assert chosen["write_kv"].name == before["write_kv"].name
    assert reasons(chosen["write_kv"])["turned"].startswith("its pages are turned, but paged_attention reads ")


def test_plain_attention_takes_the_pages_of_plain_stores_from_the_built_in_ones() -> None:
    chosen = report(CPU, [("p", paged("mine", "paged_attention", "plain"))])
    assert [chosen[op].name for op in PAGED] == ["mine", "torch", "torch"]


def test_attention_without_an_option_that_the_model_uses_is_passed_over() -> None:
    query = replace(CPU, attention_options=frozenset({"sinks", "chunk"}))
    mine = replace(paged("mine", "paged_attention", "plain"), attention_options=("chunk",))
    why = reasons(report(query, [("p", mine)])["paged_attention"])
    assert why["mine"] == "it has no sinks, which the model's attention needs"
    able = replace(mine, attention_options=("chunk", "sinks"))
    assert report(query, [("p", able)])["paged_attention"].name == "mine"


def test_stores_need_the_width_of_values_only() -> None:
    stores = [("p", paged(f"turned {op}", op, "turned")) for op in select.STORES]
    able = replace(paged("turned", "paged_attention", "turned"), attention_options=("sinks", "value_dim"))
    query = replace(CPU, attention_options=frozenset({"sinks"}))
    assert report(query, [*stores, ("p", able)])["write_kv"].name == "turned write_kv"
    chosen = report(replace(CPU, attention_options=frozenset({"value_dim"})), [*stores, ("p", able)])
    assert chosen["paged_attention"].name != "turned"
    assert "it has no value_dim" in reasons(chosen["paged_attention"])["turned"]


def test_pages_that_nothing_reads_are_chosen_all_the_same_and_reading_them_says_why() -> None:
    offered = [("p", paged(f"turned {op}", op, "turned")) for op in PAGED]
    chosen = select.choose(CPU, offered)
    assert {c.op: c.name for c in chosen.report}["read_kv"] == "none"
    with pytest.raises(RuntimeError, match="pages with the layout 'turned' cannot be read by read_kv: "):
        chosen.read_kv(torch.empty(0), torch.empty(0), torch.empty(0), torch.float32)


@needs_cpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpp_ops_are_chosen_where_they_can_run(dtype: str) -> None:
    chosen, name = report(OpQuery("cpu", dtype, head_dims=(64, 16))), f"cpp-{isa.available()[0].name}"
    for op in (*implementations.OPS, *implementations.SAMPLING):
        assert chosen[op].name == name, op
        assert reasons(chosen[op])["reference"] == f"{name} has a higher priority"


@needs_cpp
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (OpQuery("cpu", "float32", page_size=24), "its page size must be a multiple of 16 tokens, not 24"),
        (OpQuery("cpu", "bfloat16", page_size=1), "its page size must be a multiple of 16 tokens, not 1"),
        (OpQuery("cpu", "bfloat16", head_dims=(64, 33)), "its head dimensions must be multiples of 2, not 33"),
        (
            OpQuery("cpu", "bfloat16", head_dims=(64, 6), kv_dtype="int8"),
            "its head dimensions must be multiples of 4, not 6",
        ),
        (
            OpQuery("cpu", "float32", head_dims=(64, 48), kv_dtype="int4"),
            "its head dimensions must be multiples of 32, not 48",
        ),
    ],
)
def test_pages_that_cannot_be_grouped_are_left_to_torch_and_all_else_is_not(query: OpQuery, reason: str) -> None:
    chosen, name = report(query), f"cpp-{isa.available()[0].name}"
    for op in PAGED:
        assert chosen[op].name == ("torch" if query.kv_dtype == "auto" else f"torch-{query.kv_dtype}")
        assert reasons(chosen[op])[name] == reason
    assert chosen["linear"].name == chosen["rms_norm"].name == name


@needs_cpp
def test_odd_head_dimensions_are_no_obstacle_in_float32() -> None:
    chosen = report(OpQuery("cpu", "float32", head_dims=(33,)))
    assert {chosen[op].name for op in PAGED} == {f"cpp-{isa.available()[0].name}"}


def test_other_data_types_and_devices_are_left_to_torch_with_a_reason() -> None:
    if not isa.available():
        pytest.skip("no instruction set for the C++ ops: that is the reason")
    name = f"cpp-{isa.available()[0].name}"
    half, cuda = report(OpQuery("cpu", "float16")), report(OpQuery("cuda", "bfloat16"))
    for op in implementations.OPS:
        assert half[op].name in ("torch", "reference")
        assert reasons(half[op])[name] == "it computes in float32 and bfloat16, not float16"
        assert reasons(cuda[op])[name] == "it is for CPUs"


def test_without_a_compiler_torch_takes_over_and_says_why_once(
    nothing_compiled: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not isa.available():
        pytest.skip("no instruction set for the C++ ops: that is the reason")
    nothing_compiled.delenv("CXX", raising=False)
    nothing_compiled.setattr(build.shutil, "which", lambda name: None)
    chosen = report()
    for op in (*implementations.OPS, *implementations.SAMPLING):
        assert chosen[op].name in ("torch", "reference"), op
        [why] = [reason for name, reason in reasons(chosen[op]).items() if name.startswith("cpp")]
        reason = (
            "its pages are grouped"
            if op in (*select.STORES, "read_kv")
            else "it could not be loaded: BuildError: there is no C++"
        )
        assert why.startswith(reason), op
    assert [text for text in caplog.messages if "The C++ ops are not available" in text] == [
        "The C++ ops are not available; plain torch is used instead, which is several times slower: "
        "there is no C++ compiler (g++, c++ or clang++ in PATH, or $CXX); on Debian and Ubuntu: apt install g++"
    ]


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ("x86_64", "this CPU lacks instructions (at least avx2, f16c, fma)"),
        ("riscv64", "the C++ ops are for Linux on x86-64 and AArch64, and this machine is riscv64 (Linux)"),
        ("arm64", "the C++ ops are for Linux on x86-64 and AArch64, and this machine is arm64 (Darwin)"),
    ],
)
def test_where_no_instruction_set_is_there_torch_takes_over_and_says_why_once(
    machine: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(implementations, "available", tuple)
    monkeypatch.setattr(implementations, "machine", lambda: machine)
    monkeypatch.setattr(implementations, "system", lambda: "Darwin" if machine == "arm64" else "Linux")
    implementations._no_instruction_set.cache_clear()
    chosen = report()
    assert {choice.name for choice in chosen.values()} == {"torch", "reference"}
    assert reasons(chosen["linear"])["cpp"] == reason
    said = [text for text in caplog.messages if "several times slower" in text]
    assert said == [f"Plain torch takes the place of the C++ ops, which is several times slower: {reason}."]
    implementations._no_instruction_set.cache_clear()
