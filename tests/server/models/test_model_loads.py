"""Models that requests load and unload, over a client without an engine: names, settings, folders, states."""

import asyncio
import json

import pytest
from fake_client import http, pretend_app
from model_requests import error_of, load, unload

from quire.errors import CheckpointError
from quire.server.service.model_loads import MAX_FAILED, MAX_LOADS


async def listed(client):
    return [card["id"] for card in (await client.get("/v1/models")).json()["data"]]


async def series(client, name):
    text = (await client.get("/metrics")).text
    return [line for line in text.splitlines() if f'model_name="{name}"' in line]


async def until(client, name, state):
    while True:
        answer = await client.get(f"/v1/models/{name}")
        if answer.status_code == 200 and answer.json()["state"] == state:
            return answer.json()
        await asyncio.sleep(0)


def completion(client, model, **more):
    return client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 2, **more})


async def test_a_model_comes_answers_and_goes_with_its_metrics(client, pretend, folder):
    answer = await load(client, folder / "late", settings={"max-num-seqs": "1k", "dtype": "float32"})
    assert answer.status_code == 200, answer.text
    card = answer.json()
    assert (card["id"], card["state"], card["progress"], card["error"]) == ("late", "ready", 1.0, None)
    assert card["bytes"] == {"weights": 1000, "kv_cache": 0, "state": 0}
    assert (await client.get("/v1/models/late")).json()["state"] == "ready"
    assert (pretend.configs["late"].max_num_seqs, pretend.configs["late"].dtype) == (1000, "float32")
    assert await listed(client) == ["first", "second", "deux", "late"]
    assert (await completion(client, "late")).json()["model"] == "late"
    assert await series(client, "late")
    assert (await unload(client, "late")).json() == {"id": "late", "object": "model", "deleted": True}
    assert pretend.unloaded == [("late", False)]
    assert await listed(client) == ["first", "second", "deux"]
    assert not await series(client, "late")
    for answer in (await completion(client, "late"), await client.get("/v1/models/late")):
        assert error_of(answer)[0] == 404
    assert error_of(await unload(client, "late"))[0] == 404
    assert (await load(client, folder / "late")).status_code == 200


async def test_a_load_that_is_not_waited_for_shows_its_state(client, folder):
    answer = await load(client, folder / "held", "slow", wait=False)
    assert (answer.status_code, answer.json()["state"]) == (202, "loading")
    while (card := (await client.get("/v1/models/slow")).json())["progress"] == 0:
        await asyncio.sleep(0)
    assert (card["state"], card["progress"], card["bytes"], card["root"]) == (
        "loading",
        0.25,
        None,
        str(folder / "held"),
    )
    assert "slow" not in await listed(client)
    assert error_of(await completion(client, "slow"))[0] == 404
    assert (await unload(client, "slow")).status_code == 200
    assert (await client.get("/v1/models/slow")).status_code == 404
    await load(client, folder / "late", "soon", wait=False)
    await until(client, "soon", "ready")
    await load(client, folder / "corrupt", "bad", wait=False)
    assert "truncated" in (await until(client, "bad", "failed"))["error"]
    assert "bad" not in await listed(client)
    assert (await load(client, folder / "late", "bad")).status_code == 200
    await load(client, folder / "corrupt", "worse", wait=False)
    await until(client, "worse", "failed")
    assert (await unload(client, "worse")).status_code == 200
    assert (await client.get("/v1/models/worse")).status_code == 404


async def test_a_load_that_is_ended_says_so_to_its_caller(client, folder):
    loading = asyncio.create_task(load(client, folder / "held", "slow"))
    await until(client, "slow", "loading")
    assert (await unload(client, "slow")).status_code == 200
    code, message, _ = error_of(await loading)
    assert code == 400
    assert "was unloaded while it was being loaded" in message


@pytest.mark.parametrize(
    ("body", "code", "words", "param"),
    [
        ({"name": "x", "model": "/nowhere/at/all"}, 404, "There is no folder or file /nowhere/at/all", "model"),
        ({"name": "x", "model": ""}, 400, "must be a folder or hub id", "model"),
        ({"name": "x", "model": "a" * 5000}, 400, "at most 4096 characters", "model"),
        ({"name": "x", "model": "HERE/corrupt"}, 400, "The file x is truncated", "model"),
        ({"name": "", "model": "HERE/late"}, 400, "cannot be the name of a model", "name"),
        ({"name": "a\nb", "model": "HERE/late"}, 400, "cannot be the name of a model", "name"),
        ({"name": "n" * 200, "model": "HERE/late"}, 400, "cannot be the name of a model", "name"),
        ({"name": "first", "model": "HERE/late"}, 400, "`first` is in use by a model", "name"),
        ({"name": "deux", "model": "HERE/late"}, 400, "`deux` is in use by a model", "name"),
        ({"name": "x"}, 400, "Field required", "body.model"),
        ({"name": "x", "model": "HERE/late", "settings": []}, 400, "valid dictionary", "body.settings"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_and_nothing_else_changes(client, folder, body, code, words, param):
    body = json.loads(json.dumps(body).replace("HERE", str(folder)))
    answer = await client.post("/v1/load_model", json=body)
    found = error_of(answer)
    assert (found[0], found[2]) == (code, param)
    assert words in found[1]
    assert await listed(client) == ["first", "second", "deux"]
    assert (await completion(client, "first")).status_code == 200


async def test_of_two_loads_of_one_name_one_is_refused(client, folder):
    loading = asyncio.create_task(load(client, folder / "held", "one"))
    await until(client, "one", "loading")
    code, message, param = error_of(await load(client, folder / "late", "one"))
    assert (code, param) == (400, "name")
    assert "`one` is being loaded already" in message
    await unload(client, "one")
    await loading
    answers = await asyncio.gather(*(load(client, folder / "late", "two") for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400]


async def test_only_so_many_models_are_loaded_at_a_time_and_so_many_failures_kept(client, folder):
    for i in range(MAX_LOADS):
        assert (await load(client, folder / "held", f"held{i}", wait=False)).status_code == 202
    code, message, _ = error_of(await load(client, folder / "late"))
    assert code == 503
    assert f"{MAX_LOADS} models are being loaded already" in message
    for i in range(MAX_LOADS):
        assert (await unload(client, f"held{i}")).status_code == 200
    for i in range(MAX_FAILED + 1):
        await load(client, folder / "corrupt", f"bad{i}", wait=False)
        await until(client, f"bad{i}", "failed")
    assert (await client.get("/v1/models/bad0")).status_code == 404
    assert (await client.get("/v1/models/bad1")).json()["state"] == "failed"


async def test_while_a_model_drains_requests_are_refused_and_the_others_served(client, pretend):
    pretend.drain.clear()
    leaving = asyncio.create_task(unload(client, "deux"))
    assert (await until(client, "second", "draining"))["bytes"] is not None
    assert await listed(client) == ["first"]
    code, message, param = error_of(await completion(client, "second"))
    assert (code, param) == (503, "model")
    assert "is being unloaded and takes no more requests" in message
    assert "being unloaded already" in error_of(await unload(client, "second"))[1]
    assert "until the model is unloaded" in error_of(await load(client, "x", "deux"))[1]
    assert (await completion(client, "first")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 200
    assert (await unload(client, "second", force=True)).status_code == 200
    assert (await leaving).json()["id"] == "second"
    assert pretend.unloaded == [("second", False), ("second", True)]


async def test_the_only_model_is_unloaded_only_by_force(client, folder):
    await unload(client, "second")
    code, message, param = error_of(await unload(client, "first"))
    assert (code, param) == (400, "name")
    assert "`first` is the only one" in message
    assert (await unload(client, "first", force=True)).status_code == 200
    for model in ("first", None):
        code, message, _ = error_of(await completion(client, model))
        assert code == 404
    assert "POST /v1/load_model loads one" in message
    assert error_of(await client.get("/v1/models/first"))[0] == 404
    assert (await load(client, folder / "late")).status_code == 200
    assert (await completion(client, None)).json()["model"] == "late"


async def test_a_model_that_a_new_engine_process_cannot_load_is_no_longer_served(client, pretend, folder):
    await load(client, folder / "late")
    pretend.lose("late", CheckpointError("It is gone."))
    card = (await client.get("/v1/models/late")).json()
    assert (card["state"], card["error"]) == ("failed", "It is gone.")
    assert "late" not in await listed(client)


async def test_names_of_models_and_adapters_are_apart(folder, pretend):
    app = pretend_app(folder / "late", pretend)
    await pretend.adapters.load(_adapter("style", "first"))
    async with http(app) as client:
        assert "in use by an adapter" in error_of(await load(client, folder / "late", "style"))[1]
        assert "POST /v1/unload_lora_adapter" in error_of(await unload(client, "style"))[1]
        assert (await client.get("/v1/models/first")).json()["adapters"] == ["style"]
        details = (await client.get("/v1/models/style")).json()
        assert (details["state"], details["parent"], details["bytes"]["weights"]) == ("ready", "first", 1000)
        pretend.drain.clear()
        leaving = asyncio.create_task(unload(client, "first"))
        await until(client, "first", "draining")
        assert await listed(client) == ["second", "deux"]
        assert (await client.get("/v1/adapters")).json()["data"][0]["parent"] == "first"
        pretend.drain.set()
        await leaving
        assert (await client.get("/v1/adapters")).json()["data"] == []


def _adapter(name, model):
    from quire.types.adapter_info import AdapterInfo

    return AdapterInfo(name=name, model=model, path="/x", state="ready")
