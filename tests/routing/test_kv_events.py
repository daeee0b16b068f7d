"""The plugin `zmq-events`: what a subscriber that was written for vLLM reads, live and replayed."""

import socket

import msgspec
import pytest
import zmq
from kv_cache_view import KvCacheView

from quire.cli import main
from quire.engine_process.engine_builder import EngineBuilder
from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.params.sampling import SamplingParams
from quire.records import KvEventContext, Registry
from quire.settings.kv_events_config import KvEventsConfig
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request, kv_events
from quire_plugins.kv_events import ZmqPublisher, shifted
from quire_testing import check_kv_event_publisher, tiny_llama

WAIT_MS = 20_000


class BlockStored(msgspec.Struct, tag=True, kw_only=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, kw_only=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


OURS = {BlockStored: kv_events.BlockStored, BlockRemoved: kv_events.BlockRemoved}


class Batch(msgspec.Struct, array_like=True):
    """The payload: vLLM's `KVEventBatch`."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Subscriber:
    """Reads the messages at an address."""

    def __init__(self, address, topic="", replay=None):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.connect(address)
        self.events.subscribe(topic)
        self.replays = self.context.socket(zmq.DEALER)
        if replay is not None:
            self.replays.connect(replay)

    def next(self):
        """Topic, number and content of the next message."""
        assert self.events.poll(WAIT_MS), "no message came"
        return self.read(self.events.recv_multipart())

    def read(self, message):
        topic, number, payload = message
        batch = msgspec.msgpack.decode(payload, type=Batch)
        events = [
            OURS.get(type(event), kv_events.AllBlocksCleared)(**msgspec.structs.asdict(event)) for event in batch.events
        ]
        return topic.decode(), int.from_bytes(number, "big"), events, batch.data_parallel_rank

    def replayed(self, first):
        """All messages that are kept, from a number on."""
        self.replays.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while True:
            assert self.replays.poll(WAIT_MS), "no replay came"
            delimiter, *message = self.replays.recv_multipart()
            assert delimiter == b""
            if message == [b"", b"\xff" * 8, b""]:
                return found
            found.append(self.read(message))

    def close(self):
        self.context.destroy(linger=0)


@pytest.fixture
def addresses(tmp_path):
    return {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replay"}


@pytest.fixture
def subscribe(addresses):
    found = []

    def subscribed(publisher, topic=""):
        made = Subscriber(addresses["endpoint"], topic, addresses["replay_endpoint"])
        found.append(made)
        for _ in range(1000):  # until the subscription has arrived
            publisher.publish("warm-up", [])
            if made.events.poll(20):
                break
        while made.events.poll(20):
            made.events.recv_multipart()
        return made

    yield subscribed
    for one in found:
        one.close()


def publisher_at(addresses, **settings):
    return ZmqPublisher(KvEventContext(settings={**addresses, **settings}))


def test_a_subscriber_reads_topic_number_and_events_and_replays_what_it_missed(addresses, subscribe):
    publisher = publisher_at(addresses, topic="kv@pod@{model}", buffer_steps=4)
    subscriber = subscribe(publisher, "kv@")
    removed = [kv_events.BlockRemoved(block_hashes=[2**64 - 1])]
    publisher.publish("m", removed)
    topic, number, events, rank = subscriber.next()
    assert (topic, events, rank) == ("kv@pod@m", removed, 0)
    for _ in range(4):
        publisher.publish("m", [kv_events.AllBlocksCleared()])
    assert [seen[1] for seen in subscriber.replayed(number)] == [number + 1, number + 2, number + 3, number + 4]
    assert [seen[0] for seen in subscriber.replayed(number + 4)] == ["kv@pod@m"]
    assert subscriber.replayed(number + 5) == []
    publisher.close()


def test_the_publisher_keeps_the_contract(addresses):
    registry = load([])
    check_kv_event_publisher(registry.by_hook("quire_kv_event_publishers")["zmq"], settings={**addresses, "hwm": 5})


def test_every_engine_process_has_an_address_of_its_own():
    assert shifted("tcp://*:5557", 0) == "tcp://*:5557"
    assert shifted("tcp://*:5557", 3) == "tcp://*:5560"
    assert shifted("inproc://cache", 1) == "inproc://cache_dp1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint": 5}, "Expected `str`"),
        ({"buffer_steps": 0}, "above 0"),
        ({"endpoint": "nowhere"}, "cannot be used"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_a_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        ZmqPublisher(KvEventContext(settings=settings))


def test_a_port_in_use_is_refused_and_free_after_close():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        address = {"endpoint": f"tcp://*:{taken.getsockname()[1]}"}
        with pytest.raises(ConfigError, match=r"cannot be used: Address already in use"):
            publisher_at(address)
    publisher_at(address).close()
    publisher_at(address).close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"publisher": "kafka"}, "must be one of null, zmq; got 'kafka'"),
        ({"enable_kv_cache_events": True, "port": 1}, "unknown key 'port'"),
        ({"enable_kv_cache_events": "yes"}, "must be true or false"),
        ({"max_queue_size": 0}, "must be a number above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_loaded(given, message, capsys):
    with pytest.raises(ConfigError, match=message):
        KvEventsConfig.from_registry(given, load([]))
    text = msgspec.json.encode(given).decode()
    assert main(["serve", "--plugins", "", "--kv-events-config", text]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_published_unless_it_is_switched_on():
    registry = load([])
    assert KvEventsConfig.from_registry({}, registry) is None
    assert KvEventsConfig.from_registry({"endpoint": "tcp://*:5557"}, registry) is None
    assert KvEventsConfig.from_registry({"enable_kv_cache_events": True, "publisher": "null"}, registry) is None
    assert KvEventsConfig.from_registry({"enable_kv_cache_events": True}, registry).publisher == "zmq"
    assert Registry().put_kv_event is None


def test_the_events_of_an_engine_arrive_and_agree_with_its_cache(addresses, tmp_path):
    given = {"enable_kv_cache_events": True, **addresses, "topic": "{model}"}
    builder = EngineBuilder(kv_events=given)
    config = ModelConfig(
        model=str(tiny_llama(tmp_path / "m")), served_model_name=("tiny",), dtype="float32", num_pages=32
    )
    engine = builder.build(config, load(["llama"]), 1)
    for i in range(3):
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        engine.add(Request(id=f"r{i}", prompt=Prompt(token_ids=(5, 6, 7) * 20 + (i,)), params=params))
        while engine.has_work:
            engine.step()
    subscriber, view = Subscriber(addresses["endpoint"], replay=addresses["replay_endpoint"]), KvCacheView()
    cached = {int.from_bytes(page_hash[-8:], "big") for page_hash in engine._scheduler._tables.pool._page_of}
    while set(view.blocks) != cached:
        view = KvCacheView()
        for topic, _, events, _ in subscriber.replayed(0):
            assert topic == "tiny"
            view.apply(events)
    builder.close(engine)
    builder.end()
    subscriber.close()
