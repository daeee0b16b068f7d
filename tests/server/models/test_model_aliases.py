"""Names that are given to models while the server runs: switches, weights, sticky choices, what is refused."""

import asyncio
from collections import Counter

import pytest
from fake_client import http, pretend_app
from model_requests import error_of, load, unload

from quire.errors import ConfigError, NotFound
from quire.server.changes.aliases import AliasTarget, ModelAlias, parse_aliases
from quire.settings.server_config import ServerConfig


def completion(client, model, **more):
    return client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 2, **more})


def set_alias(client, alias, model=None, **more):
    return client.post("/v1/model_aliases", json={"alias": alias, "model": model, **more})


async def test_an_alias_is_listed_answers_by_its_name_and_is_switched(client):
    answer = await set_alias(client, "chat", "first")
    assert answer.json() == {
        "id": "chat",
        "object": "model_alias",
        "sticky": "user",
        "models": [{"model": "first", "weight": 1.0, "state": "ready"}],
    }
    answer = await completion(client, "chat")
    assert (answer.json()["model"], answer.headers["x-quire-model"]) == ("chat", "first")
    assert "x-quire-model" not in (await completion(client, "first")).headers
    await set_alias(client, "chat", "deux")
    assert (await completion(client, "chat", stream=True)).headers["x-quire-model"] == "second"
    cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
    assert list(cards) == ["first", "second", "deux", "chat"]
    assert (cards["chat"]["root"], cards["chat"]["models"]) == ("models/second", [{"model": "second", "weight": 1.0}])
    details = (await client.get("/v1/models/chat")).json()
    assert (details["id"], details["state"], details["models"]) == ("chat", "ready", cards["chat"]["models"])
    assert [one["id"] for one in (await client.get("/v1/model_aliases")).json()["data"]] == ["chat"]
    answer = await client.delete("/v1/model_aliases", params={"alias": "chat"})
    assert answer.json() == {"id": "chat", "object": "model_alias", "deleted": True}
    assert error_of(await completion(client, "chat"))[0] == 404
    assert error_of(await client.delete("/v1/model_aliases", params={"alias": "chat"}))[0] == 404


@pytest.mark.parametrize(
    ("body", "code", "words", "param"),
    [
        ({"alias": "chat", "model": "third"}, 404, "`third` does not exist", "model"),
        ({"alias": "chat", "models": [{"model": "third"}]}, 404, "`third` does not exist", "models"),
        ({"alias": "first", "model": "second"}, 400, "`first` is in use by a model", "alias"),
        ({"alias": "deux", "model": "first"}, 400, "`deux` is in use by a model", "alias"),
        ({"alias": "", "model": "first"}, 400, "cannot be the name", "alias"),
        ({"alias": "chat"}, 400, "needs either `model` or `models`", "model"),
        ({"alias": "chat", "model": "first", "models": [{"model": "first"}]}, 400, "needs either", "model"),
        ({"alias": "chat", "models": []}, 400, "from 1 to 16 entries; got 0", "models"),
        ({"alias": "chat", "models": [{"model": "first", "weight": 0}]}, 400, "above 0; got 0", "models"),
        ({"alias": "chat", "models": [{"model": "first", "weight": -1}]}, 400, "above 0; got -1", "models"),
        ({"alias": "chat", "models": [{"model": "first"}, {"model": "first"}]}, 400, "listed twice", "models"),
        ({"alias": "chat", "models": [{"model": "second"}, {"model": "deux"}]}, 400, "listed twice", "models"),
        ({"alias": "chat", "models": [{"model": "first", "weight": "x"}]}, 400, "valid number", "body.models.0.weight"),
        ({"alias": "chat", "model": "other"}, 400, "`other` is an alias", "model"),
        ({"alias": "chat", "model": "first", "sticky": "moon"}, 400, "'user', 'client' or 'none'", "body.sticky"),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence_and_nothing_changes(client, body, code, words, param):
    await set_alias(client, "other", "first")
    found = error_of(await client.post("/v1/model_aliases", json=body))
    assert (found[0], found[2]) == (code, param)
    assert words in found[1]
    assert [one["id"] for one in (await client.get("/v1/model_aliases")).json()["data"]] == ["other"]


@pytest.mark.parametrize("weight", ["NaN", "Infinity", "1e999"])
async def test_a_weight_is_a_finite_number(client, weight):
    body = '{"alias": "chat", "models": [{"model": "first", "weight": HERE}]}'.replace("HERE", weight)
    answer = await client.post("/v1/model_aliases", content=body, headers={"content-type": "application/json"})
    assert error_of(answer)[0] == 400


async def test_a_name_is_a_model_or_an_alias_or_an_adapter(client, folder):
    await set_alias(client, "chat", "first")
    assert "in use by an alias" in error_of(await load(client, folder / "late", "chat"))[1]
    found = error_of(await unload(client, "chat"))
    assert found[0] == 400
    assert "is an alias" in found[1]
    body = {"lora_name": "chat", "lora_path": "/nowhere"}
    assert (await client.post("/v1/load_lora_adapter", json=body)).status_code == 400


async def test_a_model_with_an_alias_is_unloaded_only_with_force(client):
    await set_alias(client, "chat", "second")
    found = error_of(await unload(client, "second"))
    assert found[0] == 400
    assert "alias `chat` stands for" in found[1]
    assert (await unload(client, "second", force=True)).status_code == 200
    found = error_of(await completion(client, "chat"))
    assert found[0] == 404
    assert "The alias `chat` leads to" in found[1]
    (listed,) = (await client.get("/v1/model_aliases")).json()["data"]
    assert listed["models"] == [{"model": "second", "weight": 1.0, "state": None}]


async def test_a_share_of_the_requests_gets_another_model_and_each_user_the_same(client, pretend):
    models = [{"model": "first", "weight": 60}, {"model": "second", "weight": 40}]
    await client.post("/v1/model_aliases", json={"alias": "chat", "models": models})

    async def chosen(**more):
        return (await completion(client, "chat", **more)).headers["x-quire-model"]

    users = {f"u{number}": await chosen(user=f"u{number}") for number in range(40)}
    assert {await chosen(user=name) == model for name, model in users.items()} == {True}
    assert set(users.values()) == {"first", "second"}
    assert len({await chosen(cache_salt="a") for _ in range(5)}) == 1
    assert {await chosen() for _ in range(80)} == {"first", "second"}
    await client.post("/v1/model_aliases", json={"alias": "chat", "models": models, "sticky": "client"})
    assert len({await chosen(user=name) for name in users}) == 1


def test_the_choice_follows_the_weights_and_a_larger_weight_keeps_its_users():
    def choices(weight):
        alias = ModelAlias("chat", (AliasTarget("new", weight), AliasTarget("old", 100 - weight)))
        return {f"u{number}": alias.choose(f"u{number}") for number in range(2000)}

    small, large = choices(5), choices(25)
    assert Counter(small.values())["new"] == pytest.approx(100, abs=40)
    assert Counter(large.values())["new"] == pytest.approx(500, abs=80)
    assert all(large[user] == "new" for user, model in small.items() if model == "new")
    drawn = ModelAlias("chat", (AliasTarget("a", 1), AliasTarget("b", 3)), "none")
    assert [drawn.choose(None, lambda point=point: point) for point in (0.0, 0.24, 0.25, 0.999)] == ["a", "a", "b", "b"]
    assert drawn.key_of({"user": "x"}, "me") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": 3}, "must be a model, or a list"),
        ({"a": ["b"]}, "must be a model, or a list"),
        ({"a": [{"weight": 1}]}, "has a `model` and a `weight`"),
        ({"a": [{"model": "b", "weight": True}]}, "has a `model` and a `weight`"),
        ({"a": [{"model": "b", "weight": float("nan")}]}, "finite number above 0"),
        ({"a": []}, "from 1 to 16"),
    ],
)
def test_settings_of_aliases_are_checked(given, words):
    with pytest.raises(ConfigError, match="--model-aliases: 'a': ") as raised:
        parse_aliases(given)
    assert words in raised.value.message


async def test_aliases_of_the_settings_are_there_from_the_start(folder, pretend):
    config = ServerConfig(model_aliases={"chat": [{"model": "second", "weight": 2}]})
    async with http(pretend_app(folder / "late", pretend, config)) as client:
        assert (await completion(client, "chat")).headers["x-quire-model"] == "second"
    with pytest.raises(NotFound):
        pretend_app(folder / "late", pretend, ServerConfig(model_aliases={"chat": "third"}))


async def test_an_unload_waits_for_a_request_that_has_found_its_model(client, pretend):
    """Between the switch of an alias and the engine, a request must not lose the model that it has found."""
    service = client._transport.app.state.service
    with service.models.uses.using("second"):
        leaving = asyncio.create_task(unload(client, "second"))
        while (await completion(client, "second")).status_code != 503:
            pass
        assert pretend.unloaded == []
    assert (await leaving).status_code == 200
    assert pretend.unloaded == [("second", False)]


async def test_force_does_not_wait_for_such_a_request(client, pretend):
    service = client._transport.app.state.service
    with service.models.uses.using("second"):
        leaving = asyncio.create_task(unload(client, "second"))
        while (await completion(client, "second")).status_code != 503:
            pass
        assert (await unload(client, "second", force=True)).status_code == 200
        assert (await leaving).status_code == 200
    assert pretend.unloaded == [("second", True)]
