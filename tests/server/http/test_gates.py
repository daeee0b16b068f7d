"""Request gates of plugins: admit, rewrite, refuse, fail, hang."""

import asyncio
import threading
from dataclasses import replace

import pytest
from fake_client import PretendClient, http, info, pretend_app

from quire.hooks.call_stats import PluginCallStats
from quire.records import Registry, RequestGate, RequestRefused
from quire.settings.server_config import ServerConfig


class Gate:
    def __init__(self, admit):
        self.admit = admit


def with_gates(*admits, counter=None):
    """A registry whose i-th gate has priority -i: the last one is asked first."""
    gates = {
        f"g{i}": RequestGate(name=f"g{i}", build=lambda context, admit=admit: Gate(admit), priority=-i)
        for i, admit in enumerate(admits)
    }
    origin = {("quire_request_gates", name): f"plugin-{name}" for name in gates}
    return Registry(records={"quire_request_gates": gates}, origin=origin, counter=counter)


async def ask(tmp_path, registry, pretend=None, path="/v1/completions", config=None, **body):
    app = pretend_app(tmp_path, pretend or PretendClient(), config, registry=registry)
    async with http(app) as client:
        return await client.post(path, json={"prompt": "abc", **body}, headers={"X-Tenant": "t"})


async def test_a_gate_sees_route_model_headers_and_body_in_order_of_priority(tmp_path):
    seen = []

    def first(request):
        seen.append(("first", request.route, request.model, request.headers["x-tenant"], request.body["prompt"]))
        return request

    def second(request):
        seen.append(("second",))
        return request

    answer = await ask(tmp_path, with_gates(second, first))
    assert answer.status_code == 200
    assert seen == [("first", "/v1/completions", "tiny", "t", "abc"), ("second",)]


async def test_a_gate_may_change_the_body_and_the_model(tmp_path):
    def admit(request):
        return replace(request, model="b", body={**request.body, "max_tokens": 2})

    answer = await ask(tmp_path, with_gates(admit), PretendClient(info("a"), info("b")))
    assert answer.json()["model"] == "b"
    assert answer.json()["usage"]["completion_tokens"] == 2


async def test_a_request_in_a_gate_that_hangs_is_refused_when_the_server_shuts_down(tmp_path):
    entered, go_on = threading.Event(), threading.Event()

    def admit(request):
        entered.set()
        go_on.wait()
        return request

    app = pretend_app(tmp_path, registry=with_gates(admit))
    async with http(app) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
        while not entered.is_set():
            await asyncio.sleep(0)
        app.state.service.inflight.close()
        answer = await asking
    go_on.set()
    assert answer.status_code == 503
    assert "shutting down" in answer.json()["error"]["message"]


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
async def test_a_gate_that_wants_the_process_to_exit_fails_its_request_in_the_error_shape(tmp_path, raised):
    def admit(request):
        raise raised(1)

    answer = await ask(tmp_path, with_gates(admit))
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == f"Plugin 'plugin-g0' failed: {raised.__name__}: 1"


async def test_what_a_gate_makes_of_a_body_is_validated(tmp_path):
    answer = await ask(tmp_path, with_gates(lambda request: replace(request, body={"prompt": 5})))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body.prompt")


@pytest.mark.parametrize("status", [400, 403, 429, 503])
async def test_a_refusal_has_the_gates_status_and_sentence(tmp_path, status):
    pretend = PretendClient()
    answer = await ask(tmp_path, with_gates(lambda request: RequestRefused("Not you.", status)), pretend)
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "Not you."
    assert answer.json()["error"]["code"] == status
    assert pretend.requests == []


async def test_a_refusal_with_an_impossible_status_is_a_403(tmp_path):
    assert (await ask(tmp_path, with_gates(lambda request: RequestRefused("No.", 200)))).status_code == 403


@pytest.mark.parametrize("counter", [None, PluginCallStats()])
async def test_a_gate_that_raises_fails_this_request_and_is_counted(tmp_path, counter):
    def admit(request):
        if "bad" in request.body:
            raise RuntimeError("boom")
        return request

    registry = with_gates(admit, counter=counter)
    answer = await ask(tmp_path, registry, bad=1)
    assert answer.status_code == 500
    assert "plugin-g0" in answer.json()["error"]["message"]
    assert (await ask(tmp_path, registry)).status_code == 200
    if counter is not None:
        (row,) = counter.snapshot()
        assert (row["plugin"], row["errors"]) == ("plugin-g0", 1)
        assert row["calls"] >= 2


async def test_a_gate_that_gives_nonsense_is_the_plugins_failure(tmp_path):
    answer = await ask(tmp_path, with_gates(lambda request: None))
    assert (answer.status_code, "NoneType" in answer.text) == (500, True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/tokenize", "/detokenize"])
async def test_every_route_that_names_a_model_is_gated(tmp_path, path):
    assert (await ask(tmp_path, with_gates(lambda request: RequestRefused("No.")), path=path)).status_code == 403


async def test_a_gate_that_leaves_the_process_fails_its_request_in_the_shape_of_errors(tmp_path):
    def admit(request):
        raise SystemExit(3)

    answer = await ask(tmp_path, with_gates(admit))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, 500)
    assert "Plugin 'plugin-g0' failed: SystemExit: 3" in answer.json()["error"]["message"]


async def test_a_gate_that_only_fails_is_switched_off_and_lets_nothing_through(tmp_path):
    pretend = PretendClient()

    def admit(request):
        raise RuntimeError("boom")

    registry = with_gates(admit, counter=PluginCallStats(max_faults=1))
    assert (await ask(tmp_path, registry, pretend)).status_code == 500
    answer = await ask(tmp_path, registry, pretend)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert "Plugin 'plugin-g0' is switched off" in answer.json()["error"]["message"]
    assert pretend.requests == []


@pytest.fixture
def slow():
    """A gate that lets nothing go on until it is set."""
    go_on = threading.Event()
    yield go_on
    go_on.set()


def held_by(go_on):
    return with_gates(lambda request: request if go_on.wait(60) else None, counter=PluginCallStats())


async def test_a_gate_that_takes_too_long_is_named_and_counted(tmp_path, slow):
    registry = held_by(slow)
    answer = await ask(tmp_path, registry, config=ServerConfig(gate_timeout_s=0.01))
    assert answer.status_code == 503
    assert "'plugin-g0' failed: its request gate took longer than 0.01 s" in answer.json()["error"]["message"]
    assert registry.counter.snapshot()[0]["errors"] == 1


async def test_slow_gates_leave_the_servers_threads_alone_and_refuse_what_cannot_wait(tmp_path, slow, monkeypatch):
    monkeypatch.setattr("quire.server.service.gates.MAX_WAITING", 20)
    app = pretend_app(tmp_path, PretendClient(), ServerConfig(gate_threads=2), registry=held_by(slow))
    async with http(app) as client:
        asked = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"})) for _ in range(60)]
        while sum(task.done() for task in asked) < 60 - 22:
            await asyncio.sleep(0)
        assert {task.result().status_code for task in asked if task.done()} == {503}
        assert (await client.get("/metrics")).status_code == 200
        slow.set()
        answers = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert (answers.count(200), answers.count(503)) == (22, 38)
