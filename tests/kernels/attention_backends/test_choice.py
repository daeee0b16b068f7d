"""Which attention back end is chosen, and why others are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.engine.loading.op_choice import choose_ops
from quire.errors import ConfigError
from quire.hooks import registry
from quire.records import OpQuery, Registry
from quire.settings.model_config import ModelConfig
from quire_kernels import reference
from quire_kernels.select import attention_backends
from quire_plugins.attention import conditions, flash_attention, flashinfer, xformers

GPU = OpQuery("cuda", "bfloat16", frozenset({"sm90"}), head_dims=(128,))
MODULES = {"xformers": xformers, "flashinfer": flashinfer, "flash-attn": flash_attention}


@pytest.fixture(scope="module")
def plugins() -> Registry:
    """The plugins, whose back ends compute as the reference does."""
    found = registry.load([*MODULES])
    ops = found.by_hook("quire_ops")
    computing = {name: replace(impl, load=lambda: reference.paged_attention) for name, impl in ops.items()}
    return replace(found, records={**found.records, "quire_ops": computing})


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library, but FlashAttention 3."""
    for module in MODULES.values():
        monkeypatch.setattr(module, "missing", lambda name: "3 is not" if name == "flash_attn_interface" else None)


def found(plugins: Registry, query: OpQuery) -> dict[str, str | None]:
    ops = plugins.by_hook("quire_ops").values()
    return {each.name: each.reason for each in attention_backends(query, [("p", impl) for impl in ops])}


def chosen(plugins: Registry, query: OpQuery) -> str:
    return next(each.name for each in choose_ops(query, plugins).report if each.op == "paged_attention")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("name", ["triton", "torch", "xformers", "flashinfer", "flash-attn", "reference"])
def test_the_back_end_that_is_asked_for_is_chosen_and_no_other_op_with_it(plugins: Registry, name: str) -> None:
    query = replace(GPU, attention_backend=name, page_size=256)
    assert chosen(plugins, query) == name
    ops = {each.op: each.name for each in choose_ops(query, plugins).report}
    auto = {each.op: each.name for each in choose_ops(replace(query, attention_backend="auto"), plugins).report}
    assert {**ops, "paged_attention": ""} == {**auto, "paged_attention": ""}
    assert auto["paged_attention"] == "triton"


@pytest.mark.usefixtures("_installed")
def test_without_triton_a_library_comes_before_plain_torch(plugins: Registry) -> None:
    old = replace(GPU, features=frozenset({"sm75"}))
    assert chosen(plugins, old) in ("xformers", "flashinfer")
    assert chosen(plugins, replace(old, dtype="float32")) == "xformers"
    assert chosen(plugins, replace(old, attention_options=frozenset({"sinks"}))) == "torch"


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("xformers", {"attention_options": frozenset({"sinks"})}, "it has no sinks"),
        ("xformers", {"kv_dtype": "int8"}, "it reads keys and values in the model's data type, not int8"),
        ("xformers", {"features": frozenset({"sm70"})}, "it needs compute capability 7.5, and the GPU has 7.0"),
        ("flashinfer", {"dtype": "float32"}, "it computes in float16 and bfloat16, not float32"),
        ("flashinfer", {"head_dims": (128, 192)}, "head dimensions are"),
        ("flash-attn", {"head_dims": (512,)}, "head dimensions are multiples of 8 up to 256, not 512"),
        ("flash-attn", {"page_size": 16}, "it reads pages of a multiple of 256 tokens, not 16 (--page-size 256)"),
        ("triton", {"device": "cpu", "features": frozenset()}, "it is for GPUs"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(
    plugins: Registry, name: str, change: dict[str, Any], reason: str
) -> None:
    query = replace(GPU, page_size=256, attention_backend=name, **{})
    query = replace(query, **change)
    assert reason in str(found(plugins, query)[name])
    with pytest.raises(ConfigError, match=rf"--attention-backend {name}: it cannot be used: ") as error:
        choose_ops(query, plugins)
    assert reason in error.value.message
    assert chosen(plugins, replace(query, attention_backend="auto")) != name


def test_a_library_that_is_not_installed_is_named(plugins: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "find_spec", lambda name: None)
    for name, package in (("xformers", "xformers"), ("flashinfer", "flashinfer"), ("flash-attn", "flash_attn")):
        assert found(plugins, GPU)[name] == f"{package} is not installed"


def test_an_unknown_back_end_is_refused(plugins: Registry) -> None:
    with pytest.raises(ConfigError, match=r"cannot be used: no loaded plugin provides it\. Here auto would be "):
        choose_ops(replace(GPU, device="cpu", attention_backend="nothing"), plugins)


def test_back_ends_have_the_names_of_vllm_too() -> None:
    names = {"FLASH_ATTN": "flash-attn", "FLASHINFER": "flashinfer", "XFORMERS": "xformers", "TORCH_SDPA": "torch"}
    names |= {"TRITON_ATTN": "triton", "triton": "triton", "auto": "auto", "mine": "mine"}
    for given, ours in names.items():
        assert ModelConfig(attention_backend=given).attention_implementation == ours


def test_conditions_on_a_cpu(plugins: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "find_spec", lambda name: object())
    reasons = found(plugins, OpQuery("cpu", "float32"))
    assert {reasons[name] for name in MODULES} == {"it is for GPUs"}
    assert reasons["torch"] is None
