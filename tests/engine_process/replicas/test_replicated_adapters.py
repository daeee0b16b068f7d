"""Adapters of several engine processes: loaded by one, known to all, and equal on all."""

import os
import signal

import pytest

from quire.errors import BadRequest, NotFound
from quire.types.adapter_info import AdapterInfo


def adapter(name, path="ok"):
    return AdapterInfo(name=name, model="a", path=path)


async def known(client):
    """What each engine process has, by name: the path and the tier."""
    return [
        {info.name: (info.path, info.tier) for info in await replica.adapters.fetch()} for replica in client.replicas
    ]


async def killed(client, number):
    os.kill(client.replicas[number].engine_pid, signal.SIGKILL)
    while client.replicas[number].alive:
        await client.replicas[number].stats()


async def test_an_adapter_is_read_by_one_replica_and_known_to_all(start):
    client = await start()
    for name in "xy":
        assert (await client.adapters.load(adapter(name))).state == "ready"
    assert await known(client) == [
        {"x": ("ok", "host"), "y": ("ok", "disk")},
        {"x": ("ok", "disk"), "y": ("ok", "host")},
    ]
    assert [info.name for info in client.adapters.all()] == ["x", "y"]
    assert [(info.name, info.tier) for info in await client.adapters.fetch()] == [("x", "host"), ("y", "host")]
    await client.adapters.unload("x")
    assert [list(names) for names in await known(client)] == [["y"], ["y"]]
    assert client.adapters.get("x") is None
    with pytest.raises(NotFound):
        await client.adapters.unload("x")


async def test_a_reload_is_known_to_all_before_it_is_answered(start):
    client = await start()
    for path in ("one", "two", "three"):
        await client.adapters.load(adapter("x", path), replacing=True)
        assert {names["x"][0] for names in await known(client)} == {path}
        assert client.adapters.get("x").path == path


async def test_a_load_that_fails_changes_nothing_anywhere(start):
    client = await start()
    await client.adapters.load(adapter("x"))
    for name in "xy":
        with pytest.raises(BadRequest, match="is bad"):
            await client.adapters.load(adapter(name, "bad"), replacing=True)
    assert [list(names) for names in await known(client)] == [["x"], ["x"]]
    assert [info.name for info in client.adapters.all()] == ["x"]


async def test_adapters_of_the_start_are_divided(start):
    client = await start(adapters=[adapter(name) for name in "xyz"])
    assert [{name: tier for name, (_, tier) in names.items()} for names in await known(client)] == [
        {"x": "host", "z": "host", "y": "disk"},
        {"y": "host", "x": "disk", "z": "disk"},
    ]
    assert sorted(info.name for info in client.adapters.all()) == ["x", "y", "z"]


async def test_a_replica_that_was_away_gets_what_it_missed(start):
    client = await start(adapters=[adapter(name) for name in "xyz"])
    await killed(client, 0)
    await client.adapters.unload("x")
    await client.adapters.load(adapter("y", "new"), replacing=True)
    await client.adapters.load(adapter("w"))
    await client.replicas[0].wait_ready()
    assert {name: path for name, (path, _) in (await known(client))[0].items()} == {"y": "new", "z": "ok", "w": "ok"}
    assert client.adapters.get("x") is None


async def test_loads_of_one_name_are_made_by_one_replica(start, tmp_path):
    import asyncio

    client = await start()
    os.mkfifo(tmp_path / "gate")
    slow = asyncio.create_task(client.adapters.load(adapter("x", f"gate:{tmp_path / 'gate'}")))
    while client.adapters.get("x") is None:
        await asyncio.sleep(0)
    again = await client.adapters.load(adapter("x", "second"), replacing=True)
    (tmp_path / "gate").write_text("")
    await slow
    paths = [names["x"][0] for names in await known(client)]
    assert again.path == "second"
    assert len(set(paths)) == 1


async def test_adapters_of_an_unloaded_model_are_gone(start):
    from client_rig import config

    client = await start(config("m", "a"), config("m", "b"))
    await client.adapters.load(adapter("x"))
    await client.unload("a")
    assert client.adapters.all() == []
