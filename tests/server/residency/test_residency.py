"""Requests that wait for models, over loads without an engine: all are answered, none loses its model."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
from prometheus_client import CollectorRegistry

from quire.errors import CheckpointError, ModelNotLoaded, NoMemory, Overloaded
from quire.server.residency.leases import Leases
from quire.server.residency.memory_meter import MemoryMeter
from quire.server.residency.metrics import ResidencyMetrics
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.residency.residency import Residency
from quire.server.residency.room import Room
from quire.server.residency.size_estimate import SizeEstimate
from quire.server.residency.waiting import Waiting
from quire.server.service.models import ModelDirectory
from quire.settings.model_config import ModelConfig
from quire.types.adapter_info import AdapterInfo

LIMIT = 100


class Table:
    """The adapters of loaded models."""

    def __init__(self):
        self.infos = {}

    def all(self):
        return list(self.infos.values())

    def get(self, name):
        return self.infos.get(name)


class World:
    """A server with models of these bytes. broken: loads that fail. larger: bytes that the engine process finds.

    Loads and unloads take some turns of the event loop. Whatever must never happen is an error here.
    """

    def __init__(self, sizes, limit=LIMIT, max_waiters=64, timeout_s=60.0, **configs):
        self.now, self.limit, self.broken, self.larger = 0.0, limit, {}, {}
        self.sizes, self.loaded, self.count = sizes, {}, 0
        self.models, self.table, self.most, self.evicted = ModelDirectory([]), Table(), 0, []
        self.memory_limit = limit
        found = [
            Registration(
                config=ModelConfig(
                    model=name, served_model_name=(name,), **{"load": "on-demand", **configs.get(name, {})}
                ),
                size=SizeEstimate(weights=size),
            )
            for name, size in sizes.items()
        ]
        self.found = Registrations(found, self.models, self.table)
        room = Room(self.found, self.table, MemoryMeter(), lambda: self.memory_limit)
        waiting = Waiting(max_waiters, timeout_s, lambda: self.now)
        metrics = ResidencyMetrics("t:", CollectorRegistry())
        self.residency = Residency(self.found, room, self, self, waiting, metrics, lambda: self.now)
        self.adapters = self

    def size_of(self, name):
        return self.larger.get(name, self.sizes[name])

    # --- what loads and unloads ---

    async def load_config(self, config):
        name, self.count = config.name, self.count + 1
        await asyncio.sleep(0)
        if name in self.broken:
            raise self.broken[name]
        used = sum(self.size_of(one) for one in self.loaded)
        if used + self.size_of(name) > self.limit:
            raise NoMemory(f"{name} does not fit")
        self.loaded[name] = True
        self.most = max(self.most, used + self.size_of(name))
        await asyncio.sleep(0)
        info = SimpleNamespace(name=name, memory_bytes=self.size_of(name), aliases=(), max_model_len=9)
        served = SimpleNamespace(info=info, aliases=(name,), name=name)
        self.models.add(served)
        return served

    async def evict(self, name):
        one = self.found.get(name)
        assert not one.num_users
        assert not one.config.pinned
        self.models.start_leaving(self.models.get(name))
        await asyncio.sleep(0)
        assert not one.num_users
        del self.loaded[name]
        self.models.remove(name)
        self.evicted.append(name)
        self.table.infos = {key: info for key, info in self.table.infos.items() if info.model != name}

    def register_adapter(self, info):
        assert info.model in self.loaded
        self.table.infos[info.name] = info

    def all(self):
        return self.table.all()

    # --- what requests do ---

    async def ask(self, name, during=None):
        """Use a model for a while; returns its name as it is in memory."""
        with Leases() as leases:
            await self.residency.use(name, leases)
            assert name in self.loaded
            if during is not None:
                await during.wait()
                assert name in self.loaded
        return name

    async def settled(self):
        for _ in range(50):
            await asyncio.sleep(0)


async def test_a_model_is_loaded_once_for_all_who_ask_and_stays():
    world = World({"a": 40})
    assert await asyncio.gather(*(world.ask("a") for _ in range(20))) == ["a"] * 20
    assert await world.ask("a") == "a"
    assert world.count == 1
    await world.residency.stop()


async def test_the_least_recently_used_leaves_and_its_adapters_come_back_with_it():
    world = World({"a": 40, "b": 40, "c": 40})
    for name in "ab":
        world.now += 1
        await world.ask(name)
    world.table.infos["style"] = AdapterInfo(name="style", model="a", path="x", state="ready", num_bytes=5)
    world.now += 1
    await world.ask("c")
    assert set(world.loaded) == {"b", "c"}
    assert world.table.all() == []
    assert [info.name for info in world.found.kept_adapters()] == ["style"]
    with Leases() as leases:
        await world.residency.use("style", leases)
        assert "a" in world.loaded
    assert world.table.get("style").model == "a"
    assert world.evicted == ["a", "b"]
    assert world.residency.forget_adapter("style") is False
    await world.residency.stop()


async def test_what_is_in_use_or_pinned_stays_and_the_request_waits_until_something_ends():
    world = World({"a": 60, "b": 30, "c": 50}, b={"pinned": True})
    held = asyncio.Event()
    await world.ask("b")
    using = asyncio.create_task(world.ask("a", held))
    await world.settled()
    waiting = asyncio.create_task(world.ask("c"))
    await world.settled()
    assert not waiting.done()
    assert set(world.loaded) == {"a", "b"}
    held.set()
    assert await waiting == "c"
    assert await using == "a"
    assert set(world.loaded) == {"b", "c"}
    await world.residency.stop()


async def test_requests_that_wait_are_bounded_in_number_and_time():
    world = World({"a": 60, "b": 60}, max_waiters=2, timeout_s=0.01)
    held = asyncio.Event()
    using = asyncio.create_task(world.ask("a", held))
    await world.settled()
    waiting = [asyncio.create_task(world.ask("b")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 requests wait for models already"):
        await world.ask("b")
    for one in waiting:
        with pytest.raises(Overloaded, match=r"was not loaded within 0\.01 s"):
            await one
    held.set()
    await using
    assert world.residency._waiting.count == 0
    await world.residency.stop()


async def test_a_load_that_fails_answers_all_and_is_tried_again_after_a_pause():
    world = World({"a": 40})
    world.broken["a"] = CheckpointError("The file x is truncated.")
    answers = await asyncio.gather(*(world.ask("a") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(answer, ModelNotLoaded) and "x is truncated" in answer.message for answer in answers)
    for _ in range(3):
        with pytest.raises(ModelNotLoaded, match="It is tried again in 1 s"):
            await world.ask("a")
    assert world.count == 1
    assert world.residency.state_of(world.found.get("a")) == "failed"
    world.now += 1
    with pytest.raises(ModelNotLoaded, match="in 2 s"):
        await world.ask("a")
    assert world.count == 2
    world.broken.clear()
    world.now += 2
    assert await world.ask("a") == "a"
    await world.residency.stop()


async def test_what_needs_more_than_was_estimated_gets_the_memory_of_idle_models():
    world = World({"a": 40, "b": 40, "c": 10, "huge": 10})
    world.larger = {"c": 55, "huge": 500}
    await world.ask("a")
    await world.ask("b")
    assert await world.ask("c") == "c"
    with pytest.raises(ModelNotLoaded, match="huge"):
        await world.ask("huge")
    assert await world.ask("a") == "a"
    await world.residency.stop()


async def test_an_idle_model_is_unloaded_at_its_deadline_and_not_before():
    world = World({"a": 40, "b": 40, "c": 5}, a={"keep_alive": 5.0}, b={"keep_alive": 0.0}, c={"pinned": True})
    for name in "abc":
        await world.ask(name)
    await world.settled()
    assert set(world.loaded) == {"a", "c"}
    world.now = 4.9
    world.residency.wake()
    await world.settled()
    assert set(world.loaded) == {"a", "c"}
    world.now = 5.0
    world.residency.wake()
    await world.settled()
    assert set(world.loaded) == {"c"}
    await world.residency.stop()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(5, 100), min_size=2, max_size=8),
    st.integers(0, 2**32),
    st.lists(st.sampled_from(["pinned", "broken", "larger", "keep", ""]), min_size=8, max_size=8),
)
def test_whatever_comes_every_request_is_answered_and_memory_suffices(sizes, seed, kinds):
    asyncio.run(churn(sizes, random.Random(seed), kinds))


async def churn(sizes, rng, kinds):
    names = {f"m{number}": size for number, size in enumerate(sizes)}
    kind = dict(zip(names, kinds, strict=False))
    pinned, room = {}, LIMIT
    for name, size in names.items():
        if kind[name] == "pinned" and size <= room - max(names.values()):
            pinned[name], room = {"pinned": True}, room - size
    keep = {name: {"keep_alive": float(rng.randrange(3))} for name in names if kind[name] == "keep"}
    world = World(names, max_waiters=12, **pinned, **keep)
    world.broken = {name: CheckpointError("It is broken.") for name in names if kind[name] == "broken"}
    world.larger = {name: min(LIMIT, size + 7) for name, size in names.items() if kind[name] == "larger"}
    running, ends = [], []
    for _ in range(60):
        world.now += rng.random()
        what = rng.random()
        if what < 0.6:
            ends.append(asyncio.Event())
            running.append(asyncio.create_task(world.ask(rng.choice(list(names)), ends[-1])))
        elif what < 0.8 and ends:
            ends.pop(rng.randrange(len(ends))).set()
        elif running:
            rng.choice(running).cancel()  # the client disconnects
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        world.broken = {} if rng.random() < 0.02 else world.broken
    for end in ends:
        end.set()
    answers = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 20)
    for answer in answers:
        assert isinstance(answer, str | Overloaded | ModelNotLoaded | asyncio.CancelledError), answer
    assert world.most <= LIMIT
    assert all(not one.num_users and not one.waiters for one in world.found)
    assert world.residency._waiting.count == 0
    await world.residency.stop()
