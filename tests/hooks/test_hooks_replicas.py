"""Hooks of servers with several replicas: routing policies, and publishers of KV events."""

from dataclasses import replace

import pytest

from quire.engine.kv_events.build import build_sender
from quire.engine.kv_tiers.blobs import StoredPage
from quire.engine.kv_tiers.build import SharedTiers
from quire.errors import ConfigError, PluginFailed
from quire.hooks.registry import load
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.routing.chosen_policy import ChosenPolicy
from quire.routing.router import RequestRouter
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request
from quire.types.kv_events import AllBlocksCleared
from quire_plugins.routing import POLICIES
from quire_testing import check_routing_policy

POLICY = """class Mine:
    def choose(self, candidates):
        {body}
@hookimpl
def quire_routing_policies(): yield RoutingPolicy("mine", lambda context: Mine())"""


def placed(registry, count):
    router = RequestRouter(3, ChosenPolicy(registry, "mine"))
    router.add_model("m", 1000, 1)
    requests = [Request(id=str(i), prompt=Prompt(token_ids=(i,)), params=SamplingParams()) for i in range(count)]
    return [router.place("m", one, 0b110).replica for one in requests]


@pytest.mark.parametrize("name", POLICIES)
def test_hook_routing_policies_that_are_bundled_keep_the_contract(name):
    check_routing_policy(load([]).by_hook("quire_routing_policies")[name])


def test_a_policy_of_a_plugin_chooses(site):
    site.add("mine", POLICY.format(body="return candidates.replicas[-1]"))
    registry = load(["mine"])
    assert placed(registry, 3) == [2, 2, 2]
    with pytest.raises(AssertionError, match=r"gave one of 5 replicas"):
        check_routing_policy(registry.by_hook("quire_routing_policies")["mine"])


@pytest.mark.parametrize("body", ["raise KeyError('x')", "return 0", "return -1", "return None", "return 7"])
def test_a_policy_that_fails_is_counted_and_load_alone_decides(site, body):
    site.add("mine", POLICY.format(body=body))
    registry = load(["mine"])
    assert placed(registry, 4) == [1, 2, 1, 2]
    (row,) = [row for row in registry.counter.snapshot() if row["plugin"] == "mine"]
    assert row["errors"] == 4


def test_an_unknown_policy_is_refused_with_the_names_of_the_known():
    with pytest.raises(ConfigError, match="must be one of prefix, round-robin, least-loaded; got 'best'"):
        ChosenPolicy(load([]), "best")
    with pytest.raises(ConfigError, match="none, because no loaded plugin"):
        ChosenPolicy(Registry(), "best")


def test_a_policy_that_cannot_be_built_stops_the_start(site):
    site.add("mine", "@hookimpl\ndef quire_routing_policies(): yield RoutingPolicy('mine', lambda context: 1 / 0)")
    with pytest.raises(PluginFailed, match="ZeroDivisionError"):
        ChosenPolicy(load(["mine"]), "mine")


PUBLISHER = """class Writes:
    def __init__(self, context):
        self.path, self.engine = context.settings["path"], context.engine
    def publish(self, model, events):
        if model == "bad": raise KeyError("no")
        self.write(f"{model} {self.engine} {type(events[0]).__name__}\\n")
    def close(self):
        self.write("closed")
    def write(self, text):
        with open(self.path, "a") as file: file.write(text)
@hookimpl
def quire_kv_event_publishers(): yield KvEventPublisher("file", Writes, frozenset({"path"}))"""


def test_hook_kv_event_publishers_get_events_in_order_and_faults_are_counted(site, tmp_path):
    site.add("writes", PUBLISHER)
    registry = load(["writes"])
    given = {"enable_kv_cache_events": True, "publisher": "file", "path": str(tmp_path / "log")}
    sender = build_sender(given, registry, 3)
    assert all(sender.put(model, AllBlocksCleared()) for model in ("a", "bad", "b"))
    sender.close()
    assert (tmp_path / "log").read_text() == "a 3 AllBlocksCleared\nb 3 AllBlocksCleared\nclosed"
    (row,) = [row for row in registry.counter.snapshot() if row["plugin"] == "writes"]
    assert (row["calls"], row["errors"]) == (5, 1)


STORE = """from quire.errors import ConfigError
class Counts:
    def __init__(self, context):
        if context.settings["size"] < 1: raise ConfigError("too small")
        self.blobs = {}
    def contains(self, keys): return [key in self.blobs for key in keys]
    def get(self, key): raise KeyError(key)
    def put(self, key, blob, ttl_s): self.blobs[key] = blob
    def remove(self, key): self.blobs.pop(key, None)
    def use(self): return KvStoreUse(num_blobs=len(self.blobs))
    def close(self): pass
@hookimpl
def quire_kv_stores(): yield KvStore("counts", Counts, frozenset({"size"}))"""


def test_hook_kv_stores_are_built_with_their_settings_and_faults_are_counted(site):
    site.add("counts", STORE)
    registry = load(["counts"])
    config = ModelConfig(model="m", kv_store_config={"store": "counts", "size": 5})
    shared = SharedTiers(registry)
    (tier,) = shared.open(config).tiers
    key = "0" * 32
    tier.put(key, StoredPage(b"page"))
    assert tier.contains([key, key[1:] + "1"]) == [True, False]
    assert tier.get([key]) == []
    assert tier.stats().num_errors_total == 1
    (row,) = [row for row in registry.counter.snapshot() if row["plugin"] == "counts"]
    assert row["errors"] == 1
    with pytest.raises(ConfigError, match="too small"):
        shared.open(replace(config, kv_store_config={"store": "counts", "size": 0}))
    shared.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"store": "cloud"}, "one of counts, disk; got 'cloud'"), ({"store": "counts", "port": 1}, "unknown key 'port'")],
)
def test_a_store_that_is_not_there_is_refused(site, given, message):
    site.add("counts", STORE)
    with pytest.raises(ConfigError, match=message):
        ModelConfig(model="m", kv_store_config=given).kv_stores(load(["counts"]))


def test_a_full_queue_takes_no_more_events(site, tmp_path):
    site.add("writes", PUBLISHER)
    given = {"enable_kv_cache_events": True, "publisher": "file", "path": str(tmp_path / "log"), "max_queue_size": 2}
    sender = build_sender(given, load(["writes"]), 0)
    taken = [sender.put("a", AllBlocksCleared()) for _ in range(1000)]
    assert taken[0]
    assert not all(taken)
    sender.close()
