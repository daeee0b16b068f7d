"""What clients see of models that are loaded on demand: lists, states, answers, errors, metrics."""

import asyncio
from dataclasses import replace

from model_requests import error_of, load, unload

from quire.types.adapter_info import AdapterInfo


async def states(client):
    return {card["id"]: card["state"] for card in (await client.get("/v1/models")).json()["data"]}


def complete(client, model, **more):
    return client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 2, **more})


async def until(client, name, state):
    while (await client.get(f"/v1/models/{name}")).json().get("state") != state:
        await asyncio.sleep(0)


async def test_a_model_is_listed_loaded_when_asked_for_and_leaves_for_another(client, pretend):
    unloaded = dict.fromkeys(("one", "uno", "two", "broken"), "unloaded")
    assert await states(client) == {"first": "ready", **unloaded}
    card = (await client.get("/v1/models/uno")).json()
    assert (card["state"], card["bytes"], card["progress"], card["error"]) == ("unloaded", None, 0.0, None)
    ready = (await client.get("/health/ready")).json()
    assert {row["id"]: row["state"] for row in ready["models"]}["one"] == "unloaded"
    assert (await client.get("/health/ready?model=uno")).status_code == 200
    answers = await asyncio.gather(*(complete(client, name) for name in ("one", "uno")))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["model"] == "one"
    assert pretend.loads == ["one"]
    assert (await client.get("/v1/models/one")).json()["state"] == "ready"
    assert (await complete(client, "two")).status_code == 200
    assert pretend.unloaded == [("first", False)]
    assert (await complete(client, "first")).status_code == 200
    assert await states(client) == {
        "first": "ready",
        "two": "ready",
        **dict.fromkeys(("one", "uno"), "unloaded"),
        "broken": "unloaded",
    }
    text = (await client.get("/metrics")).text
    assert 'quire:model_loads_total{engine="0",model_name="one"} 1.0' in text
    assert 'quire:model_evictions_total{engine="0",model_name="one",reason="memory"} 1.0' in text
    assert 'quire:model_state{engine="0",model_name="two",state="ready"} 1.0' in text
    assert "quire:requests_waiting_for_models 0.0" in text
    assert "quire:model_load_seconds_count 3.0" in text


async def test_a_sleeping_model_counts_with_what_it_holds(client, pretend):
    pretend.infos = (replace(pretend.infos[0], kv_cache_bytes=25), *pretend.infos[1:])
    app = client._transport.app
    room = app.state.service.residency.room
    (first,) = [one for one in app.state.service.residency.registrations if one.name == "first"]
    first.loaded(pretend.infos[0], 0.0)
    sizes = [room.bytes_of(first)]
    for level in (1, 2):
        await client.post("/sleep", params={"model": "first", "level": level})
        sizes.append(room.bytes_of(first))
    await client.post("/wake_up")
    assert [*sizes, room.bytes_of(first)] == [40, 15, 0, 40]


async def test_a_sleeping_model_leaves_room_for_others_and_takes_it_back(client, pretend):
    await client.post("/sleep", params={"model": "first", "level": 2})
    assert [(await complete(client, name)).status_code for name in ("one", "two")] == [200, 200]
    assert pretend.unloaded == []
    assert (await client.post("/wake_up", params={"model": "first"})).status_code == 200
    assert pretend.unloaded == [("one", False)]
    assert (await states(client))["first"] == "ready"
    assert (await complete(client, "one")).status_code == 200
    assert pretend.unloaded == [("one", False), ("two", False)]  # to wake a model is to use it


async def test_an_alias_may_get_a_model_that_is_being_unloaded_for_another(client, pretend):
    pretend.drain.clear()
    asking = asyncio.create_task(complete(client, "one")), asyncio.create_task(complete(client, "two"))
    await until(client, "first", "draining")
    answer = await client.post("/v1/model_aliases", json={"alias": "chat", "model": "first"})
    assert answer.status_code == 200
    pretend.drain.set()
    assert [(await task).status_code for task in asking] == [200, 200]
    assert (await complete(client, "chat")).headers["x-quire-model"] == "first"


async def test_too_many_waiting_requests_and_unknown_and_broken_models_get_a_sentence(client, pretend):
    pretend.gates["one"] = asyncio.Event()
    waiting = [asyncio.create_task(complete(client, "one")) for _ in range(2)]
    await until(client, "one", "loading")
    refused = await complete(client, "two")
    assert "--max-model-waiters" in error_of(refused)[1]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    pretend.gates["one"].set()
    assert [(await one).status_code for one in waiting] == [200, 200]
    broken = await complete(client, "broken")
    assert error_of(broken)[:2] == (
        503,
        "The model `broken` could not be loaded: The file x is truncated. It is tried again in 1 s.",
    )
    assert broken.headers["retry-after"] == "1"
    card = (await client.get("/v1/models/broken")).json()
    assert (card["state"], card["error"]) == ("failed", "The file x is truncated.")
    code, message, _ = error_of(await complete(client, "nowhere"))
    assert code == 404
    assert "Valid aliases: one, uno, first, two, broken" in message


async def test_a_client_that_disconnects_waits_no_more_and_the_load_goes_on(client, pretend):
    pretend.gates["one"] = asyncio.Event()
    leaving = asyncio.create_task(complete(client, "one"))
    await until(client, "one", "loading")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert "quire:requests_waiting_for_models 0.0" in (await client.get("/metrics")).text
    pretend.gates["one"].set()
    await until(client, "one", "ready")
    assert (await complete(client, "one")).status_code == 200
    assert pretend.loads == ["one"]


async def test_clients_register_load_and_remove_models(client, pretend, folder):
    answer = await load(client, folder / "late", settings={"load": "on-demand", "keep_alive": "5m"})
    assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
    taken = error_of(await load(client, folder / "late"))
    assert (taken[0], taken[2]) == (400, "name")
    assert "is loaded when a request asks for it" in taken[1]
    assert (await complete(client, "late")).status_code == 200
    assert (await complete(client, "one")).status_code == 200  # for which `first` leaves
    assert (await unload(client, "late")).json()["deleted"]
    assert error_of(await complete(client, "late"))[0] == 404
    assert (await complete(client, "two")).status_code == 200
    assert (await load(client, folder / "late", settings={"pinned": True})).status_code == 200
    await until(client, "one", "unloaded")  # it leaves for `late`
    assert [name for name, _ in pretend.unloaded] == ["first", "late", "one"]
    assert (await complete(client, "one")).status_code == 200
    assert pretend.unloaded[-1] == ("two", False)
    assert (await unload(client, "two")).json() == {"id": "two", "object": "model", "deleted": True}
    assert "two" not in await states(client)
    for wrong, words in (
        ({"keep_alive": "soon"}, "is not a time"),
        ({"keep_alive": -2}, "at least 0"),
        ({"load": "x"}, "one of"),
    ):
        code, message, _ = error_of(await load(client, folder / "late", "wrong", settings=wrong))
        assert code == 400
        assert words in message


async def test_adapters_of_a_model_that_is_not_loaded_are_listed_bring_it_back_and_can_be_removed(client, pretend):
    await complete(client, "one")
    for name in ("style", "poems"):
        pretend.register_adapter(AdapterInfo(name=name, model="one", path=f"/x/{name}", state="ready"))
    await complete(client, "two")
    await complete(client, "first")
    assert pretend.adapters.all() == []
    assert {**await states(client)}["style"] == "unloaded"
    details = (await client.get("/v1/models/style")).json()
    assert (details["parent"], details["state"]) == ("one", "unloaded")
    assert (await client.get("/v1/models/one")).json()["adapters"] == ["style", "poems"]
    assert [row["id"] for row in (await client.get("/v1/adapters")).json()["data"]] == ["style", "poems"]
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "poems"})).status_code == 200
    answer = await complete(client, "style")
    assert (answer.status_code, answer.json()["model"]) == (200, "style")
    assert list(pretend.adapters.infos) == ["style"]
    assert error_of(await complete(client, "poems"))[0] == 404
