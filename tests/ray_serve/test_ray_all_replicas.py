"""What all replicas of the application on Ray answer together: changes of adapters, and metrics. Needs no Ray."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from quire.errors import BadRequest, EngineDied
from quire.ray.all_replicas import LOAD, METRICS, UNLOAD, AllReplicas
from quire.ray.calls import HttpCall, WholeAnswer
from quire.ray.merged_metrics import merged
from quire.ray.shared_adapters import SharedAdapters
from quire.ray.stored_adapters import StoredAdapter

KEY = (b"authorization", b"Bearer admin")


class Store:
    """In place of the cluster's."""

    def __init__(self):
        self.adapters = {}

    def all(self):
        return dict(self.adapters)

    def get(self, name):
        return self.adapters.get(name)

    def put(self, adapter):
        self.adapters[adapter.name] = adapter

    def remove(self, name):
        self.adapters.pop(name, None)


class Service:
    """Adapters of one replica, whose files may be missing."""

    def __init__(self):
        self.loaded, self.missing = {}, set()

    async def load(self, request):
        if request.lora_path in self.missing:
            raise BadRequest(f"no file {request.lora_path}")
        self.loaded[request.lora_name] = request.lora_path

    async def unload(self, name):
        del self.loaded[name]


class Replica:
    def __init__(self, name, store):
        self.name, self.service = name, Service()
        self.adapters = SharedAdapters(self.service, store)

    def _said(self, status, text=""):
        return WholeAnswer(status, (), text.encode(), self.name)

    async def answer(self, call):
        if call.path == METRICS:
            return self._said(200, f'# HELP n Requests.\n# TYPE n counter\nn_total{{model="m"}} {len(self.name)}.0\n')
        if KEY not in call.headers:
            return self._said(401)
        fields = json.loads(call.body)
        try:
            if call.path == LOAD:
                await self.service.load(SimpleNamespace(**fields))
            else:
                await self.service.unload(fields["lora_name"])
        except (BadRequest, KeyError) as error:
            return self._said(400, str(error))
        return self._said(200, "done")

    async def load_adapter(self, call, adapter):
        return await self.adapters.load(adapter, lambda: self.answer(call))

    async def unload_adapter(self, call, name):
        return await self.adapters.unload(name, lambda: self.answer(call))

    async def follow_stored_adapters(self):
        await self.adapters.follow()


class Handle:
    """Of a deployment with these replicas; one that is None is lost."""

    def __init__(self, replicas):
        self.replicas = replicas

    def options(self, method_name):
        return SimpleNamespace(remote=getattr(self.replicas[0], method_name))

    def broadcast(self, method, *args):
        async def results(timeout_s, return_exceptions):
            assert return_exceptions
            return [OSError("lost") if each is None else await getattr(each, method)(*args) for each in self.replicas]

        return SimpleNamespace(results_async=results)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def replicas(store):
    return [Replica("a", store), Replica("bb", store)]


@pytest.fixture
def everyone(replicas, store):
    return AllReplicas(Handle(replicas), store)


def call(path, key=KEY, **fields):
    return HttpCall("POST", path, path.encode(), b"", (key,), None, json.dumps(fields).encode())


def load(name, path, **fields):
    return call(LOAD, lora_name=name, lora_path=path, **fields)


def loaded(replicas):
    return [replica.service.loaded for replica in replicas]


async def test_an_adapter_is_loaded_and_unloaded_on_all_and_on_those_that_start_later(everyone, replicas, store):
    assert (await everyone.answer(load("style", "/one"))).status == 200
    assert loaded(replicas) == [{"style": "/one"}] * 2
    replicas.append(Replica("later", store))
    await replicas[-1].adapters.follow()
    assert loaded(replicas) == [{"style": "/one"}] * 3
    assert (await everyone.answer(load("style", "/two", load_inplace=True))).status == 200
    assert loaded(replicas) == [{"style": "/two"}] * 3
    assert (await everyone.answer(call(UNLOAD, lora_name="style"))).status == 200
    assert loaded(replicas) == [{}] * 3
    assert not store.adapters
    assert (await everyone.answer(call(UNLOAD, lora_name="style"))).status == 400


async def test_a_replica_that_has_missed_a_change_follows(everyone, replicas):
    missed, replicas[1] = replicas[1], None
    await everyone.answer(load("style", "/one"))
    assert missed.service.loaded == {}
    await missed.adapters.follow()
    assert missed.service.loaded == {"style": "/one"}
    await everyone.answer(call(UNLOAD, lora_name="style"))
    await missed.adapters.follow()
    assert missed.service.loaded == {}


async def test_what_one_replica_cannot_load_none_has(everyone, replicas, store):
    await everyone.answer(load("kept", "/one"))
    replicas[1].service.missing.add("/two")
    for name, before in (("style", {}), ("kept", {"kept": "/one"})):
        answer = await everyone.answer(load(name, "/two", load_inplace=True))
        assert (answer.status, answer.body, answer.replica) == (400, b"no file /two", "bb")
        assert {key: value for key, value in replicas[0].service.loaded.items() if key == name} == before
        assert loaded(replicas) == [{"kept": "/one"}] * 2
    assert list(store.adapters) == ["kept"]


async def test_a_sender_without_the_key_changes_nothing(everyone, replicas, store):
    await everyone.answer(load("kept", "/one"))
    for change in (load("style", "/one"), call(UNLOAD, lora_name="kept")):
        assert (await everyone.answer(change._replace(headers=()))).status == 401
    assert loaded(replicas) == [{"kept": "/one"}] * 2
    assert list(store.adapters) == ["kept"]


async def test_an_adapter_that_was_found_in_the_store_first_is_not_loaded_twice(replicas, store):
    adapter = StoredAdapter("style", {"lora_name": "style", "lora_path": "/one"}, 7)
    store.put(adapter)
    await replicas[0].adapters.follow()
    replicas[0].service.missing.add("/one")  # another load would fail
    assert (await replicas[0].load_adapter(load("style", "/one"), adapter)).status == 200


async def test_metrics_are_of_all_replicas(everyone, replicas):
    answer = await everyone.answer(call(METRICS)._replace(method="GET"))
    lines = answer.body.decode().splitlines()
    assert lines.count("# TYPE n_total counter") == 1
    assert {line for line in lines if not line.startswith("#")} == {
        'n_total{model="m",replica="a"} 1.0',
        'n_total{model="m",replica="bb"} 2.0',
    }
    replicas[0] = None
    assert b'replica="a"' not in (await everyone.answer(call(METRICS))).body


async def test_without_replicas_there_is_an_error(store):
    with pytest.raises(EngineDied, match="no replica"):
        await AllReplicas(Handle([None]), store).answer(call(METRICS))


def test_histograms_stay_whole():
    text = (
        '# HELP h Time.\n# TYPE h histogram\nh_bucket{le="1.0"} 2.0\nh_bucket{le="+Inf"} 3.0\nh_count 3.0\nh_sum 4.5\n'
    )
    body = merged([WholeAnswer(200, (), text.encode(), name) for name in "ab"]).body.decode()
    assert 'h_bucket{le="+Inf",replica="b"} 3.0' in body
    assert 'h_sum{replica="a"} 4.5' in body


def test_only_changes_and_metrics_are_for_all(everyone):
    assert everyone.answers(load("a", "/b"))
    assert everyone.answers(call(METRICS))
    assert not everyone.answers(call("/v1/completions"))
    assert not everyone.answers(call(LOAD)._replace(method="GET"))
