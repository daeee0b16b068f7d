"""What requests with keys of a key file are answered: who they are, models that they may use, changes of the file."""

import asyncio
import hashlib
import logging
from dataclasses import replace

from fake_client import info
from tenant_rig import BODY, complete, headers_of, secret_of, write_keys

from quire.server.tenants.tenants import Tenants
from quire.types.adapter_info import AdapterInfo


async def test_keys_of_a_tenant_are_one_client_with_its_weight_and_prefix_cache(rig):
    one = rig(
        {"acme": {"weight": 2}, "open": {"share_cache": True}},
        {k: {"tenant": t} for k, t in (("a", "acme"), ("b", "acme"), ("c", "open"))},
    )
    async with one.http() as client:
        for key in "abc":
            await complete(client, key, cache_salt="mine")
    assert [request.client for request in one.engine.requests] == ["acme", "acme", "open"]
    assert [request.weight for request in one.engine.requests] == [2.0, 2.0, 1.0]
    assert [request.cache_salt for request in one.engine.requests] == ["acme\0mine", "acme\0mine", "mine"]


async def test_keys_of_the_command_line_work_beside_the_file(rig):
    one = rig({"acme": {}}, {"a": {"tenant": "acme"}}, config={"api_key": ("plain",)})
    async with one.http() as client:
        for key, status in (("plain", 200), (secret_of("a"), 200), ("other", 401), (None, 401)):
            answer = await client.post("/v1/completions", json=BODY, headers={"x-api-key": key} if key else {})
            assert answer.status_code == status
    assert one.engine.requests[0].client.startswith("key:")
    assert one.engine.requests[1].client == "acme"


async def test_models_and_adapters_that_a_key_may_not_use_do_not_exist_for_it(rig):
    keys = {"all": {"tenant": "t"}, "some": {"tenant": "t", "models": ["b*"], "adapters": ["mine-*"]}}
    one = rig({"t": {"scopes": ["generate", "read", "load"]}}, keys, info("a"), info("b", aliases=("bee", "other")))
    for name in ("mine-1", "theirs"):
        one.engine.adapters.infos[name] = AdapterInfo(name=name, model="a", path="/p", state="ready", revision=1)
    async with one.http() as client:

        async def listed(key):
            return [card["id"] for card in (await client.get("/v1/models", headers=headers_of(key))).json()["data"]]

        assert await listed("all") == ["a", "b", "bee", "other", "mine-1", "theirs"]
        assert await listed("some") == ["b", "bee", "mine-1"]
        adapters = (await client.get("/v1/adapters", headers=headers_of("some"))).json()["data"]
        assert [card["id"] for card in adapters] == ["mine-1"]
        assert (await complete(client, "some")).json()["model"] == "b"  # the default is one that it may use
        assert (await complete(client, "some", model="mine-1")).json()["model"] == "mine-1"
        for hidden in ("a", "other", "theirs"):
            said = (await complete(client, "some", 404, model=hidden)).json()["error"]["message"]
            unknown = (await complete(client, "some", 404, model="nothing")).json()["error"]["message"]
            assert said == unknown.replace("nothing", hidden)
            assert not {"`a`", " a,", "theirs", "other"} & set(unknown.split())
            found = await client.get(f"/v1/models/{hidden}", headers=headers_of("some"))
            assert found.status_code == 404
            unload = {"name": hidden} if hidden != "theirs" else {"lora_name": hidden}
            path = "/v1/unload_model" if hidden != "theirs" else "/v1/unload_lora_adapter"
            assert (await client.post(path, json=unload, headers=headers_of("some"))).status_code == 404
        load = await client.post("/v1/load_model", json={"name": "x", "model": "/m"}, headers=headers_of("some"))
        assert load.status_code == 403
        detail = await client.get("/v1/models/bee", headers=headers_of("some"))
        assert detail.status_code == 200


async def test_a_key_that_may_use_no_model_gets_none_by_default(rig):
    one = rig({"t": {"models": ["nothing-*"]}}, {"k": {"tenant": "t"}}, info("a"))
    async with one.http() as client:
        await complete(client, "k", 404)
        await complete(client, "k", 404, model="a")
    assert one.engine.requests == []


async def test_expired_and_revoked_keys_are_refused(rig):
    one = rig({"t": {}}, {"old": {"tenant": "t", "expires": "2026-11-27T12:00:10Z"}, "k": {"tenant": "t"}})
    async with one.http() as client:
        await complete(client, "old")
        one.clock.now += 10
        refused = await complete(client, "old", 401)
        assert "expired" in refused.text
        assert refused.headers["www-authenticate"] == "Bearer"
        one.clock.now -= 10_000  # a clock set back revives no key for longer than it was set back while it ran
        write_keys(one.path, {"t": {}}, {"k": {"tenant": "t"}})
        assert one.tenants.reload()
        await complete(client, "old", 401)
        await complete(client, "k")


async def test_a_malformed_file_leaves_the_one_before_in_force(rig, caplog):
    one = rig({"t": {}}, {"k": {"tenant": "t"}})
    one.path.write_text("tenants: [")
    with caplog.at_level(logging.ERROR):
        assert not one.tenants.reload()
    assert "the one before stays in force" in caplog.text
    async with one.http() as client:
        await complete(client, "k")


async def test_the_server_follows_the_file(rig, monkeypatch):
    monkeypatch.setattr("quire.server.tenants.tenants.POLL_S", 0.001)
    one = rig({"t": {}}, {"k": {"tenant": "t"}})
    watching = asyncio.create_task(one.tenants.watch())
    write_keys(one.path, {"t": {"requests_per_minute": 7}}, {"new": {"tenant": "t"}})
    while "new" not in {key.id for key in one.tenants._file.keys.values()}:
        await asyncio.sleep(0.001)
    watching.cancel()
    async with one.http() as client:
        await complete(client, "k", 401)
        assert (await complete(client, "new")).headers["x-ratelimit-limit-requests"] == "7"


async def test_no_key_is_in_answers_or_logs(rig, caplog):
    one = rig({"t": {"requests_per_minute": 1}}, {"k": {"tenant": "t", "scopes": ["generate"]}})
    with caplog.at_level(logging.DEBUG):
        async with one.http() as client:
            answers = [await complete(client, "k"), await complete(client, "k", 429)]
            answers.append(await client.get("/v1/models", headers=headers_of("k")))
            answers.append(await client.get("/metrics"))
    assert answers[2].status_code == 403
    for text in (caplog.text, *(answer.text + str(answer.headers) for answer in answers)):
        assert secret_of("k") not in text


def test_a_lookup_compares_a_key_with_no_other(tmp_path):
    """So ten thousand keys are found as quickly as one."""

    class Keys(dict):
        def __iter__(self):
            raise AssertionError("a lookup goes through all keys")

        keys = values = items = __iter__

    write_keys(tmp_path / "keys.yaml", {"t": {}}, {f"k{i}": {"tenant": "t"} for i in range(100)})
    tenants = Tenants(tmp_path / "keys.yaml")
    tenants._file = replace(tenants._file, keys=Keys(tenants._file.keys))
    assert tenants.find(hashlib.sha256(secret_of("k7").encode()).digest()).key.id == "k7"
    assert tenants.find(b"unknown") is None
