"""A plugin that raises in each of its hooks: what fails, and that nothing else does."""

import concurrent.futures
import importlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake_client import pretend_app
from plugin_site import PluginSite
from serving import Server, serving

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.errors import PluginError, QuireError
from quire.hooks.registry import load
from quire.records import RECORDS
from quire.settings.model_config import ModelConfig
from quire_testing import tiny_llama

HAZARD = Path(__file__).parents[2] / "data" / "hazard"


# --- at start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", RECORDS)
def test_a_noun_hook_that_raises_stops_the_start(site: PluginSite, hook: str) -> None:
    site.add("rude", f"@hookimpl\ndef {hook}(): raise KeyError('no')")
    with pytest.raises(PluginError, match=f"Plugin 'rude' failed in {hook}: KeyError: 'no'"):
        load(["rude"])


@pytest.mark.parametrize("hook", RECORDS)
def test_a_noun_hook_that_raises_after_its_first_record_stops_the_start(site: PluginSite, hook: str) -> None:
    site.add("rude", f"@hookimpl\ndef {hook}():\n    raise OSError('gone')\n    yield")
    with pytest.raises(PluginError, match=f"Plugin 'rude' failed in {hook}: OSError: gone"):
        load(["rude"])


BUILDS = {
    "quire_routers": "Router('rude', build=burn)",
    "quire_request_gates": "RequestGate('rude', build=burn)",
    "quire_metrics_exporters": "MetricsExporter('rude', build=burn)",
}
BURN = "def burn(*args): raise ValueError('no build')\n"


@pytest.mark.parametrize("hook", BUILDS)
def test_a_build_that_the_server_needs_stops_the_start(site: PluginSite, hook: str, tmp_path: Path) -> None:
    site.add("rude", f"{BURN}@hookimpl\ndef {hook}(): yield {BUILDS[hook]}")
    with pytest.raises(QuireError, match="Plugin 'rude' failed: ValueError: no build"):
        pretend_app(tmp_path, registry=load(["rude"]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def engine_with(model: Path, plugins: list[str], **settings: object) -> Engine:
    return build_engine(ModelConfig(model=str(model), dtype="float32", num_pages=16, **settings), load(plugins))


@pytest.mark.parametrize(
    "record",
    [
        "logits_processors(): yield LogitsProcessor('rude', {}, build=burn)",
        "scheduler_policies(): yield SchedulerPolicy('rude', build=burn)",
    ],
)
def test_a_build_that_a_model_needs_stops_its_load(site: PluginSite, model: Path, record: str) -> None:
    site.add("rude", f"{BURN}@hookimpl\ndef quire_{record}")
    with pytest.raises(QuireError, match="Plugin 'rude' failed: ValueError: no build"):
        engine_with(model, ["llama", "rude"], scheduling_policy="rude" if "policies" in record else "fcfs")


def test_a_decoder_that_raises_stops_the_load_of_its_model(site: PluginSite, model: Path) -> None:
    source = "@hookimpl\ndef quire_architectures(): yield Architecture('LlamaForCausalLM', decoder=burn, names=None)"
    site.add("rude", BURN + source)
    with pytest.raises(QuireError, match=r"Plugin 'rude' .*ValueError: no build"):
        engine_with(model, ["rude"])


def test_an_operation_that_cannot_be_loaded_or_asked_is_passed_over(site: PluginSite, model: Path) -> None:
    site.link(HAZARD)
    importlib.invalidate_caches()
    (choice,) = [c for c in engine_with(model, ["llama", "hazard"]).loaded.ops.report if c.op == "act"]
    assert choice.plugin == "built-in"
    reasons = {rejected.name: rejected.reason for rejected in choice.rejected}
    assert "Hazard: it burns" in reasons["hazard-load"]
    assert "Hazard: it burns" in reasons["hazard-supports"]


# --- while serving ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("site")
    made = PluginSite(folder)
    made.link(HAZARD)
    made.close()
    words = ("--plugins", "llama,hazard", f"tiny={model}", "--num-pages", 64, "--dtype", "float32")
    path = f"{folder}:{HAZARD}"
    with serving(*words, "--scheduling-policy", "hazard", env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}) as running:
        yield running


def ask(server: Server, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)


def row(server: Server) -> dict[str, object]:
    listed = httpx.get(f"{server.url}/plugins", timeout=60).json()["data"]
    return next(plugin for plugin in listed if plugin["name"] == "hazard")


FAULTS = {
    "a gate raises": ({"headers": {"x-hazard": "raise"}}, "Plugin 'hazard' failed: Hazard: it burns"),
    "a gate answers nonsense": ({"headers": {"x-hazard": "nonsense"}}, "Plugin 'hazard' failed"),
    "a processor's start raises": ({"hazard": "start"}, "Plugin 'hazard' failed: Hazard: it burns"),
    "a processor's apply raises": ({"hazard": "apply"}, "Plugin 'hazard' failed: Hazard: it burns"),
    "compiling raises": ({"structured_outputs": {"regex": "compile"}}, "Plugin 'hazard' failed: Hazard: it burns"),
    "beginning a grammar raises": ({"structured_outputs": {"regex": "start"}}, "Plugin 'hazard' failed"),
    "a mask raises": ({"structured_outputs": {"regex": "fill"}}, "Plugin 'hazard' failed: Hazard: it burns"),
    "forcing raises": ({"structured_outputs": {"regex": "forced"}}, "Plugin 'hazard' failed: Hazard: it burns"),
    "accepting raises": ({"structured_outputs": {"regex": "accept"}}, "Plugin 'hazard' failed: Hazard: it burns"),
    "a matcher contradicts itself": ({"structured_outputs": {"regex": "refuse"}}, "'hazard' rejected token"),
    "a policy's key raises": ({"priority": -666}, "Plugin 'hazard' failed: Hazard: it burns"),
    "a gate leaves the process": ({"headers": {"x-hazard": "exit"}}, "Plugin 'hazard' failed: SystemExit"),
    "a processor spoils logits": ({"hazard": "shape"}, "Plugin 'hazard' failed: ValueError: it turned logits"),
}


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_request_and_no_other(server: Server, fault: str) -> None:
    fields, sentence = FAULTS[fault]
    usual = ask(server).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        beside = [pool.submit(ask, server, max_tokens=30) for _ in range(3)]
        failed = ask(server, **fields)
        assert failed.status_code == 500, failed.text
        assert sentence in failed.json()["error"]["message"]
        for answer in beside:
            assert answer.result().status_code == 200
    assert ask(server).json()["choices"][0]["text"] == usual


@pytest.mark.process
def test_a_fault_in_a_stream_ends_it_with_an_error(server: Server) -> None:
    answer = ask(server, hazard="apply", stream=True)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert len(events) >= 3
    assert any("Plugin 'hazard' failed: Hazard: it burns" in event for event in events[-2:])


@pytest.mark.process
def test_a_route_that_raises_answers_in_the_shape_of_errors(server: Server) -> None:
    answer = httpx.get(f"{server.url}/hazard", timeout=60)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "Plugin 'hazard' failed: Hazard: it burns"
    assert "Traceback" not in answer.text


@pytest.mark.process
def test_faults_are_counted_against_the_plugin_and_health_stays_good(server: Server) -> None:
    before = row(server)["errors"]
    ask(server, headers={"x-hazard": "raise"})
    assert row(server)["errors"] > before
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200


@pytest.mark.process
def test_events_and_exporters_that_raise_are_logged_with_the_name_of_the_plugin(server: Server) -> None:
    ask(server)
    assert ask(server).status_code == 200
    log = server.output()
    assert "hazard failed in quire_engine_started" in log
    assert "hazard failed in quire_request_finished" in log
    assert "metrics exporter of plugin 'hazard' failed" in log
