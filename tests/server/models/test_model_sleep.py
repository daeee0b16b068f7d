"""Models that sleep and wake, over a client without an engine: wire shapes, levels, modes, tags, states, refusals."""

import pytest
from fake_client import http, pretend_app
from model_requests import error_of

from quire.errors import ConfigError
from quire.settings.server_config import ServerConfig


def completion(client, model, **more):
    return client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 2, **more})


async def state(client, name):
    return (await client.get(f"/v1/models/{name}")).json()["state"]


async def test_all_models_sleep_and_wake_with_the_shapes_of_vllm(client, pretend):
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
    answer = await client.post("/sleep")
    assert (answer.status_code, answer.json()) == (200, {"status": "sleeping", "level": 1})
    assert pretend.sleepers.calls == [("first", 1, True), ("second", 1, True)]
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
    answer = await completion(client, "deux")
    assert error_of(answer) == (
        503,
        "The model `second` sleeps and takes no requests until it is woken (POST /wake_up).",
        "model",
    )
    assert answer.headers["retry-after"] == "5"
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 503
    answer = await client.post("/wake_up")
    assert answer.json() == {"status": "awake", "tags": ["weights", "kv_cache"]}
    assert (await completion(client, "deux")).status_code == 200
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_the_metric_of_vllm_says_how_each_model_sleeps(client):
    await client.post("/sleep", params={"level": 2, "model": "second"})
    lines = (await client.get("/metrics")).text.splitlines()
    found = [line.split("{")[1] for line in lines if line.startswith("quire:engine_sleep_state{")]
    rows = [("first", (1, 0, 0)), ("second", (0, 0, 1))]
    states = ("awake", "weights_offloaded", "discard_all")
    assert sorted(found) == sorted(
        f'engine="0",model_name="{name}",sleep_state="{state}"}} {value:.1f}'
        for name, values in rows
        for state, value in zip(states, values, strict=True)
    )


async def test_one_model_sleeps_beside_another(client, pretend):
    answer = await client.post("/sleep", params={"level": 2, "mode": "wait", "model": "deux"})
    assert answer.json() == {"status": "sleeping", "level": 2}
    assert pretend.sleepers.calls == [("second", 2, False)]
    card = (await client.get("/v1/models/second")).json()
    assert (card["state"], card["bytes"]) == ("sleeping", {"weights": 0, "kv_cache": 0, "state": 0})
    assert await state(client, "first") == "ready"
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await client.get("/is_sleeping", params={"model": "second"})).json() == {"is_sleeping": True}
    assert (await completion(client, "second")).status_code == 503
    assert (await completion(client, "first")).status_code == 200
    ready = await client.get("/health/ready")
    assert (ready.status_code, [row["state"] for row in ready.json()["models"]]) == (200, ["ready", "sleeping"])
    assert (await client.get("/health/ready", params={"model": "second"})).status_code == 503


async def test_a_request_without_a_model_gets_one_that_is_awake(client):
    await client.post("/sleep", params={"model": "first"})
    answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    assert (answer.status_code, answer.json()["model"]) == (200, "second")


async def test_parts_are_woken_one_by_one(client, pretend):
    await client.post("/sleep", params={"model": "first"})
    answer = await client.post("/wake_up", params={"tags": "weights", "model": "first"})
    assert answer.json() == {"status": "sleeping", "tags": ["weights"]}
    assert (await completion(client, "first")).status_code == 503
    answer = await client.post("/wake_up?tags=weights&tags=kv_cache&model=first")
    assert answer.json() == {"status": "awake", "tags": ["weights", "kv_cache"]}
    assert (await completion(client, "first")).status_code == 200
    assert pretend.sleepers.calls[1:] == [("first", ("weights",)), ("first", ("weights", "kv_cache"))]


@pytest.mark.parametrize(
    ("call", "code", "words", "param"),
    [
        ("/sleep?model=third", 404, "`third` does not exist", "model"),
        ("/wake_up?model=third", 404, "`third` does not exist", "model"),
        ("/sleep?level=0", 400, "`level` must be 1 or 2; got 0", "level"),
        ("/sleep?mode=keep", 400, "`mode` must be abort or wait; got keep", "mode"),
        ("/wake_up?tags=weights&tags=all", 400, "`tags` may be weights and kv_cache; got all", "tags"),
        ("/sleep?level=x", 400, "valid integer", "query"),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(client, pretend, call, code, words, param):
    found = error_of(await client.post(call))
    assert (found[0], found[2]) == (code, param)
    assert words in found[1]
    assert pretend.sleepers.calls == []
    assert (await client.get("/is_sleeping?model=third")).status_code == 404


async def test_a_model_that_cannot_wake_sleeps_on(client, pretend):
    await client.post("/sleep", params={"model": "first"})
    pretend.sleepers.refusal = ConfigError("The model 'first' would take 3 GiB, but 1 GiB are left.")
    assert error_of(await client.post("/wake_up"))[:2] == (400, pretend.sleepers.refusal.message)
    assert await state(client, "first") == "sleeping"


async def test_a_model_that_sleeps_can_be_unloaded(client, pretend):
    await client.post("/sleep", params={"model": "second"})
    assert (await client.post("/v1/unload_model", json={"name": "second"})).status_code == 200
    assert (await client.get("/v1/models/second")).status_code == 404


async def test_admin_keys_guard_what_changes_models(folder, pretend):
    config = ServerConfig(api_key=("user",), admin_api_key=("boss",))
    async with http(pretend_app(folder / "late", pretend, config)) as client:
        for method, path in (
            ("POST", "/sleep"),
            ("POST", "/wake_up"),
            ("POST", "/v1/model_aliases"),
            ("GET", "/v1/model_aliases"),
            ("POST", "/v1/reload"),
        ):
            answer = await client.request(method, path, headers={"authorization": "Bearer user"})
            assert answer.status_code == 403, path
        boss = {"authorization": "Bearer boss"}
        assert (await client.post("/sleep", headers=boss)).status_code == 200
        assert (await client.get("/is_sleeping", headers={"authorization": "Bearer user"})).status_code == 200


async def test_a_server_that_others_reach_changes_nothing_without_an_admin_key(folder, pretend):
    async with http(pretend_app(folder / "late", pretend, ServerConfig(host="0.0.0.0"))) as client:
        alias = {"alias": "chat", "model": "first"}
        for answer in (
            await client.post("/sleep"),
            await client.post("/wake_up"),
            await client.post("/v1/model_aliases", json=alias),
            await client.delete("/v1/model_aliases", params={"alias": "chat"}),
            await client.post("/v1/reload"),
        ):
            assert error_of(answer)[0] == 400
            assert "neither" in error_of(answer)[1]
    assert pretend.sleepers.calls == []


async def test_without_a_file_there_is_nothing_to_read_again(client):
    found = error_of(await client.post("/v1/reload"))
    assert found[0] == 400
    assert "started without --config" in found[1]
