"""What the API process knows of adapters when answers of the host cross what clients ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quire.engine_process.adapter_directory import AdapterDirectory
from quire.engine_process.wire.adapter_changes import AdapterChanged, AdapterLoaded
from quire.errors import BadRequest, NotFound
from quire.types.adapter_info import AdapterInfo

A = AdapterInfo(name="a", model="m", path="/a")
GONE = AdapterChanged(replace(A, state="retired"))


class Host:
    """Calls wait until the test answers them."""

    def __init__(self) -> None:
        self.table = AdapterDirectory(self._call)
        self.calls: list[tuple[Any, asyncio.Future[Any]]] = []

    async def _call(self, message: Callable[[int], Any]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.calls.append((message(len(self.calls)), answer))
        return await answer

    async def begin(self, action: Any) -> asyncio.Task[Any]:
        """Start what makes a call, until the call is there."""
        number = len(self.calls)
        task = asyncio.ensure_future(action)
        while len(self.calls) == number:
            await asyncio.sleep(0)
        return task

    def say(self, revision: int) -> None:
        """An adapter that was loaded in the background is ready."""
        self.table.on_event(AdapterChanged(self.ready(revision)))

    def answer(self, call: int, result: Any) -> None:
        if isinstance(result, AdapterLoaded):
            self.table.on_event(result)
        self.calls[call][1].set_result(result)

    def ready(self, revision: int) -> AdapterInfo:
        return replace(A, state="ready", revision=revision)


async def loading(host: Host) -> None:
    """A background load that was accepted."""
    task = await host.begin(host.table.load(A, wait=False))
    host.answer(len(host.calls) - 1, AdapterLoaded(0, replace(A, state="loading")))
    await task


async def test_news_that_crosses_an_unload_brings_no_adapter_back() -> None:
    host = Host()
    await loading(host)
    unload = await host.begin(host.table.unload("a"))
    host.say(1)  # sent before the host heard of the unload
    assert host.table.get("a") is None
    host.table.on_event(GONE)
    host.answer(1, None)
    await unload
    assert host.table.all() == []


async def test_what_is_loaded_after_an_unload_is_known_although_the_unload_takes_long() -> None:
    host = Host()
    await loading(host)
    unload = await host.begin(host.table.unload("a"))
    load = await host.begin(host.table.load(A))
    host.say(1)
    assert host.table.get("a") == A, "that was the old one"
    host.table.on_event(GONE)
    host.answer(2, AdapterLoaded(2, host.ready(2)))
    assert (await load).revision == 2
    assert host.table.get("a") == host.ready(2)
    host.answer(1, None)  # the old one's memory is free
    await unload
    assert host.table.get("a") == host.ready(2)


async def test_an_unload_that_fails_leaves_the_name_free() -> None:
    host = Host()
    await loading(host)
    unload = await host.begin(host.table.unload("a"))
    host.calls[1][1].set_exception(NotFound("It is gone."))
    with pytest.raises(NotFound):
        await unload
    load = await host.begin(host.table.load(A))
    host.answer(2, AdapterLoaded(2, host.ready(2)))
    await load
    assert host.table.get("a") == host.ready(2)


async def test_a_load_that_fails_leaves_all_as_it_was() -> None:
    host = Host()
    load = await host.begin(host.table.load(A))
    assert host.table.get("a") == A
    host.calls[0][1].set_exception(BadRequest("It is bad."))
    with pytest.raises(BadRequest):
        await load
    assert host.table.all() == []


async def waiting_for_a_load(host: Host) -> asyncio.Task[AdapterInfo | None]:
    await loading(host)
    task = asyncio.ensure_future(host.table.settled("a"))
    host.table.on_event(AdapterChanged(replace(A, name="b", state="ready")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("ending", [{"revision": 1, "state": "ready"}, {"state": "failed", "error": "It is bad."}])
async def test_a_first_load_is_waited_for_until_it_ends(ending: dict[str, Any]) -> None:
    host = Host()
    task = await waiting_for_a_load(host)
    host.table.on_event(AdapterChanged(replace(A, **ending)))
    assert await task == await host.table.settled("a") == replace(A, **ending)


async def test_the_wait_for_a_load_ends_when_the_adapter_or_its_model_is_unloaded() -> None:
    host = Host()
    task = await waiting_for_a_load(host)
    await host.begin(host.table.unload("a"))
    assert await task is None
    task = await waiting_for_a_load(other := Host())
    other.table.forget_model("m")
    assert await task is None


async def test_the_wait_for_a_load_ends_when_the_load_fails() -> None:
    host = Host()
    load = await host.begin(host.table.load(A))
    task = asyncio.ensure_future(host.table.settled("a"))
    await asyncio.sleep(0)
    host.calls[0][1].set_exception(BadRequest("It is bad."))
    assert await task is None
    with pytest.raises(BadRequest):
        await load


async def test_the_wait_for_a_load_goes_on_after_a_restart() -> None:
    host = Host()
    task = await waiting_for_a_load(host)
    host.table.ready([A])
    await asyncio.sleep(0)
    host.table.ready([host.ready(1)])
    assert await task == host.ready(1)


async def test_a_name_belongs_to_one_model() -> None:
    host = Host()
    await loading(host)
    host.say(1)
    with pytest.raises(BadRequest, match="for the model `m`"):
        await host.table.load(replace(A, model="other"), replacing=True)
    host.table.forget_model("m")
    assert host.table.all() == []


async def test_an_older_revision_does_not_take_the_place_of_a_newer_one() -> None:
    host = Host()
    await loading(host)
    host.say(2)
    host.say(1)
    assert host.table.get("a") == host.ready(2)
    host.table.on_event(AdapterChanged(replace(A, state="failed", error="It is bad.")))
    assert host.table.get("a") == host.ready(2)
