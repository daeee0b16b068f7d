"""What raises in a plugin's code while a model is loaded, or in a step or a route, names the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_client import http, pretend_app
from plugin_site import PluginSite

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.errors import ConfigError, PluginError
from quire.hooks.call_stats import plugin_behind
from quire.hooks.registry import load
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request
from quire_testing import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", head_dim=32)


def build(model: Path, plugins: list[str], **settings: object) -> Engine:
    return build_engine(ModelConfig(model=str(model), dtype="float32", num_pages=16, **settings), load(plugins))


QUANTIZATION = """
def bind(weight, bias, gated):
    return 1 / 0

@hookimpl
def quire_quantizations(): yield Quantization("bq", linear=lambda ops, options: {0})
"""


@pytest.mark.parametrize(
    ("linear", "said"), [("bind", "ZeroDivisionError"), ("1", "not a function"), ("bind(1)", "bind")]
)
def test_a_quantization_that_fails_at_load_is_named(site: PluginSite, model: Path, linear: str, said: str) -> None:
    site.add("bq", QUANTIZATION.format(linear))
    with pytest.raises(Exception, match=rf"Plugin 'bq'.*{said}"):
        build(model, ["llama", "bq"], quantization="bq")


ARCHITECTURE = """
from quire_plugins.architectures.llama import decoder
from quire_models.loading.weight_names import LLAMA

@hookimpl
def quire_architectures(): yield Architecture("LlamaForCausalLM", {0})
"""
WRONG = {
    "a decoder that gives nothing": "lambda c: None, LLAMA",
    "a decoder that leaves the process": "lambda c: exit(), LLAMA",
    "a dict for names": "decoder, {'a': 'b'}",
    "a function that gives no names": "decoder, lambda c: 5",
    "a tower that is none": "decoder, LLAMA, tower=lambda c: 5",
    "a pooling that is none": "decoder, LLAMA, pooling=lambda c: 5",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_architecture_that_cannot_be_used_names_its_plugin(site: PluginSite, model: Path, wrong: str) -> None:
    site.add("odd", ARCHITECTURE.format(WRONG[wrong]))
    with pytest.raises(PluginError, match=r"Plugin 'odd' could not make a .* for LlamaForCausalLM"):
        build(model, ["odd"])


def test_names_may_be_a_function_of_the_config(site: PluginSite, model: Path) -> None:
    site.add("fine", ARCHITECTURE.format("decoder, lambda c: LLAMA if c.num_hidden_layers == 2 else None"))
    assert build(model, ["fine"]).loaded.names.rename("model.norm") == "norm"


OP = """
def act(*args):
    raise ArithmeticError("overflown")

@hookimpl
def quire_ops(): yield OpImpl("mine", {0})
"""
ATTENTION = '"paged_attention", lambda query: None, lambda: act, priority=100'


def ask(engine: Engine) -> str:
    engine.add(Request(id="r", prompt=Prompt(token_ids=(1, 2)), params=SamplingParams(max_tokens=2)))
    (delta,) = engine.step()
    return str(delta.error)


def test_an_operation_that_raises_in_a_step_is_named_and_counted(site: PluginSite, model: Path) -> None:
    site.add("mine", OP.format('"rms_norm", lambda query: None, lambda: act, priority=100'))
    engine = build(model, ["llama", "mine"])
    assert "ArithmeticError: overflown. Plugin 'mine' raised it." in ask(engine)
    (row,) = [row for row in engine._registry.counter.snapshot() if row["plugin"] == "mine"]
    assert row["errors"] == 1


PICKY = """
from quire_kernels.reference import rms_norm as plain

def rms_norm(x, weight, eps):
    if x.shape[0] == 3 or x.shape[0] > 8:
        raise ArithmeticError("not three")
    return plain(x, weight, eps)

@hookimpl
def quire_ops(): yield OpImpl("picky", "rms_norm", lambda query: None, lambda: rms_norm, priority=100)
"""


def test_an_operation_that_raises_for_one_request_ends_that_alone(site: PluginSite, model: Path) -> None:
    site.add("picky", PICKY)
    engine = build(model, ["llama", "picky"])
    alone = build(model, ["llama"])
    greedy = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    prompts = {"good": (1, 2, 3, 4, 5), "bad": (7, 8, 9), "other": (6, 5)}
    for request_id, ids in prompts.items():
        engine.add(Request(id=request_id, prompt=Prompt(token_ids=ids), params=greedy))
    found = answers(engine)
    assert "not three. Plugin 'picky' raised it." in found.pop("bad")
    for request_id in found:
        alone.add(Request(id=request_id, prompt=Prompt(token_ids=prompts[request_id]), params=greedy))
    assert found == answers(alone)


def answers(engine: Engine) -> dict[str, str]:
    found: dict[str, str] = {}
    while engine.has_work:
        for delta in engine.step():
            text = str(delta.token_ids) if delta.error is None else delta.error[1]
            found[delta.request_id] = found.get(delta.request_id, "") + text
    return found


def test_who_shares_pages_that_a_failed_row_should_have_filled_fails_with_it(site: PluginSite, model: Path) -> None:
    site.add("picky", PICKY.replace("x.shape[0] == 3 or x.shape[0] > 8", "x.shape[0] > 12"))
    engine = build(model, ["llama", "picky"])
    greedy = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    first = tuple(range(20))  # fails alone too; what comes behind its first page would not
    for request_id, ids in {"first": first, "second": (*first[:16], 1, 2), "third": (5, 6)}.items():
        engine.add(Request(id=request_id, prompt=Prompt(token_ids=ids), params=greedy))
    found = answers(engine)
    assert "ArithmeticError" in found["first"]
    assert "ArithmeticError" in found["second"]
    assert "Error" not in found["third"]
    again = SamplingParams(max_tokens=1, temperature=0)
    engine.add(Request(id="again", prompt=Prompt(token_ids=(*first[:16], 1, 2)), params=again))
    assert "ArithmeticError" in answers(engine)["again"]  # no page of the failed step is found in the cache


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_pages_that_a_plugins_attention_cannot_read_are_refused(site: PluginSite, model: Path, kind: str) -> None:
    site.add("mine", OP.format(ATTENTION))
    with pytest.raises(
        ConfigError, match=f"--kv-cache-dtype {kind}: the operation 'mine' of plugin 'mine' cannot be used"
    ):
        build(model, ["llama", "mine"], kv_cache_dtype=kind)


def test_an_operation_on_request_is_only_for_models_that_need_it(site: PluginSite, model: Path) -> None:
    site.add("mine", OP.format(ATTENTION + ", on_request=True"))
    (choice,) = [c for c in build(model, ["llama", "mine"]).loaded.ops.report if c.op == "paged_attention"]
    reasons = {one.name: one.reason for one in choice.rejected}
    assert reasons["mine"] == "it is only for models that require it or if it is asked for"
    site.add("needy", ARCHITECTURE.format('decoder, LLAMA, needs_ops=("mine",)'))
    (choice,) = [c for c in build(model, ["needy", "mine"]).loaded.ops.report if c.op == "paged_attention"]
    assert choice.plugin == "mine"


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ('"act", lambda query: "too old", lambda: act', "too old"),
        ('"act", lambda query: None, lambda: act(), on_request=True', "it could not be loaded: ArithmeticError"),
    ],
)
def test_a_model_whose_operation_cannot_be_used_does_not_load(site: PluginSite, model: Path, op: str, why: str) -> None:
    site.add("mine", OP.format(op))
    site.add("needy", ARCHITECTURE.format('decoder, LLAMA, needs_ops=("mine",)'))
    with pytest.raises(ConfigError, match=f"The model needs the operation 'mine', which cannot be used: {why}"):
        build(model, ["needy", "mine"])


def test_a_model_whose_operation_no_plugin_brings_does_not_load(site: PluginSite, model: Path) -> None:
    site.add("needy", ARCHITECTURE.format('decoder, LLAMA, needs_ops=("mine",)'))
    with pytest.raises(ConfigError, match="'mine', which cannot be used: no loaded plugin provides it"):
        build(model, ["needy"])


ROUTER = """
from fastapi import APIRouter
router = APIRouter()

@router.get("/odd")
def odd(leave: bool = False):
    raise SystemExit(3) if leave else KeyError("gone")

@hookimpl
def quire_routers(): yield Router("odd", lambda service: {0})
"""


@pytest.mark.parametrize(("query", "said"), [("", "KeyError: 'gone'"), ("?leave=1", "SystemExit: 3")])
async def test_a_route_that_raises_is_named(site: PluginSite, tmp_path: Path, query: str, said: str) -> None:
    site.add("odd", ROUTER.format("router"))
    async with http(pretend_app(tmp_path, registry=load(["odd"]))) as client:
        answer = await client.get(f"/odd{query}")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == f"Plugin 'odd' failed: {said}"


def test_a_router_that_is_none_stops_the_start(site: PluginSite, tmp_path: Path) -> None:
    site.add("odd", ROUTER.format("None"))
    with pytest.raises(PluginError, match="Plugin 'odd': the router 'odd' must build an APIRouter; got None"):
        pretend_app(tmp_path, registry=load(["odd"]))


def test_an_exception_of_ours_is_not_blamed_on_a_plugin(site: PluginSite) -> None:
    site.add("odd", "")
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")
    assert plugin_behind(load(["odd"]), caught.value) is None
