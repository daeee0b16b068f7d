"""The front of the application on Ray: what clients get when replicas are lost, and where requests go."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import httpx
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own modules
    pytest.importorskip("ray.serve", reason="ray is not installed: pip install 'quire-serve[ray]'")
    from ray.exceptions import RayActorError

    from quire.ray import build_app
    from quire.ray.calls import HttpCall
    from quire.ray.ingress import LOST, Ingress
    from quire.ray.router import ReplicaRouter, routed_request
    from quire.ray.stored_adapters import StoredAdapters

from quire.errors import ConfigError
from quire.routing.chosen_policy import ChosenPolicy
from quire.routing.router import RequestRouter

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


def start(status=200, headers=JSON):
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body, more=False):
    return {"type": "http.response.body", "body": body, "more_body": more}


class Answer:
    """Yields what a replica sends; an exception ends it."""

    def __init__(self, sent):
        self._sent = iter(sent)

    def __aiter__(self):
        return self

    async def __anext__(self):
        found = next(self._sent, None)
        if found is None:
            raise StopAsyncIteration
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self):
        pass


class Replicas:
    """A handle whose answers are given, one for each try."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), []

    def options(self, **_):
        return self

    def remote(self, call):
        self.calls.append(call)
        return Answer(self.answers.pop(0))


async def send(replicas, method="POST", path="/v1/completions", content=b"{}", limit=100):
    ingress = Ingress(replicas, limit, StoredAdapters("test")).__serve_build_asgi_app__()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(ingress), base_url="http://test") as client:
        return await client.request(method, path, content=content)


async def test_an_answer_passes_through():
    replicas = Replicas([[start(201), part(b"a", True)], [part(b"b")]])
    answer = await send(replicas, content=b'{"prompt": 1}')
    assert (answer.status_code, answer.content) == (201, b"ab")
    assert (replicas.calls[0].path, replicas.calls[0].body) == ("/v1/completions", b'{"prompt": 1}')


@pytest.mark.parametrize("failure", [RayActorError(), [start(503), part(b"no")]])
async def test_another_replica_answers_if_the_first_has_not_begun(failure):
    replicas = Replicas([failure], [[start(), part(b"yes")]])
    assert (await send(replicas)).content == b"yes"
    assert len(replicas.calls) == 2


async def test_the_last_try_decides(monkeypatch):
    monkeypatch.setattr("quire.ray.ingress.PAUSES_S", (0.0, 0.0))
    answer = await send(Replicas(*[[RayActorError()]] * 3))
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, LOST)
    answer = await send(Replicas(*[[[start(503), part(b"no")]]] * 2))
    assert (answer.status_code, answer.content) == (503, b"no")


async def test_a_stream_that_had_begun_ends_with_an_error_and_is_not_computed_again():
    replicas = Replicas([[start(headers=EVENTS), part(b"data: 1\n\n", True)], RayActorError()])
    first, last = (await send(replicas)).text.strip().split("\n\n")
    assert first == "data: 1"
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == LOST
    assert len(replicas.calls) == 1


async def test_a_fault_of_the_application_is_no_reason_to_try_again():
    replicas = Replicas([ValueError("secret")])
    answer = await send(replicas)
    assert (answer.status_code, len(replicas.calls)) == (500, 1)
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/v1/files/abc", "/v1/load_model"])
async def test_what_replicas_do_not_share_is_refused(path):
    answer = await send(Replicas(), path=path)
    assert (answer.status_code, path.startswith(answer.json()["error"]["message"].split()[0])) == (501, True)


async def test_a_body_that_is_too_large_reaches_no_replica():
    assert (await send(Replicas(), content=b"x" * 101)).status_code == 413


# --- where requests go ------------------------------------------------------------------------------


def call(**fields):
    return HttpCall("POST", "/v1/chat/completions", b"", b"", (), None, json.dumps(fields).encode())


def routed(**fields):
    return routed_request(call(**fields), frozenset({"base"}))


def test_a_model_that_is_no_base_model_is_an_adapter():
    assert [use.ref.name for use in routed(model="style").adapters] == ["style"]
    assert not routed(model="base").adapters
    assert not routed_request(None, frozenset()).adapters
    assert routed_request(call()._replace(body=b"{"), frozenset()).prompt.token_ids == ()


def test_a_conversation_that_goes_on_begins_with_the_same_tokens():
    turns = [{"role": "user", "content": "a" * 400}, {"role": "assistant", "content": "b"}]
    short, longer = routed(messages=turns[:1]).prompt.token_ids, routed(messages=turns).prompt.token_ids
    same = next(i for i, (a, b) in enumerate(zip(short, longer, strict=False)) if a != b)
    assert same >= len(short) - 1 > 100


@pytest.fixture
def router():
    """A router with three replicas, without the parts of Ray Serve that send requests."""
    made = ReplicaRouter.__new__(ReplicaRouter)
    made.initialize_state("prefix", ["base"], 10_000, 4, None)
    made._numbers = {name: number for number, name in enumerate("abc")}
    return made


def pending(request_id, **fields):
    metadata = SimpleNamespace(internal_request_id=request_id)
    return SimpleNamespace(args=[call(**fields)], metadata=metadata, routing_context=SimpleNamespace())


REPLICAS = [SimpleNamespace(replica_id=name) for name in "abc"]


async def place(router, request):
    ranks = await router.choose_replicas(REPLICAS, request)
    assert sorted(replica.replica_id for rank in ranks for replica in rank) == [*"abc"]
    router.on_request_routed(request, ranks[0][0].replica_id, None)
    return ranks[0][0].replica_id


async def test_requests_with_one_prefix_go_to_one_replica_and_others_elsewhere(router):
    chosen = [await place(router, pending(str(n), model="base", prompt="x" * 4000 + str(n))) for n in range(3)]
    assert len(set(chosen)) == 1
    assert await place(router, pending("other", model="base", prompt="y" * 4000)) != chosen[0]


async def test_requests_with_an_adapter_go_where_it_is(router):
    chosen = [await place(router, pending(str(n), model="style", prompt=f"{n}")) for n in range(3)]
    assert len(set(chosen)) == 1


async def test_load_counts_until_a_request_ends(router):
    replica = await place(router, pending("1", model="base", prompt="x" * 400))
    number = router._numbers[replica]
    assert router._places.load(number) > 100
    router.on_request_completed(replica, "1")
    assert router._places.load(number) == 0


def test_the_routing_is_that_of_the_server(router):
    assert type(router._places) is RequestRouter
    assert type(router._places._policy) is ChosenPolicy


# --- the application --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"server": {}}, "no argument 'server'"),
        ({"serve": 5}, "must be a map"),
        ({"serve": {"model": "demo-chat"}, "routing": "best"}, "must be one of"),
        ({"serve": {"model": "demo-chat"}, "target_kv_usage": 0.5}, "autoscaling_config"),
        ({"serve": {"model": "demo-chat"}, "replica": {"num_replica": 2}}, "num_replica"),
    ],
)
def test_arguments_that_are_wrong_are_named(args, message):
    with pytest.raises(ConfigError, match=message):
        build_app(args)
