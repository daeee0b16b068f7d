"""Bounds of the HTTP server that hold before any work: connections, headers, time, bodies, JSON."""

import asyncio
import gzip
import json
import zlib

import httpx
import pytest
from fake_client import PretendClient, http, pretend_app
from live_server import live

from quire.errors import Overloaded
from quire.server.connections.connections import ConnectionLimits, Connections
from quire.server.http.body import check_json_size, decompress
from quire.server.http.errors import MalformedBody
from quire.server.http.middleware import MAX_LARGE_BODIES, BodyLimitMiddleware
from quire.settings.server_config import ServerConfig

JSON = {"content-type": "application/json"}
GET = b"GET /version HTTP/1.1\r\nhost: a\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture
def serve(folder):
    def serve(**settings):
        config = ServerConfig(port=0, disable_access_log=True, log_level="warning", **settings)
        return live(pretend_app(folder, PretendClient(), config), config)

    return serve


async def connected(url):
    _, _, address = url.partition("//")
    host, _, port = address.partition(":")
    return await asyncio.open_connection(host, int(port))


async def said(url, data):
    """What the server says until it closes the connection."""
    reader, writer = await connected(url)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


def error_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    ("sent", "setting"),
    [
        (GET + b"".join(b"h%d: a\r\n" % i for i in range(200)), "--max-headers"),
        (GET + b"h: " + b"a" * 200_000, "--max-header-bytes"),
        (GET + b"h: " + b"a" * 70_000 + b"\r\n\r\n", "--max-header-bytes"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", "--max-header-bytes"),
    ],
    ids=["many", "one without an end", "one that is long", "a long path"],
)
async def test_headers_that_are_too_many_or_too_large_are_refused(serve, sent, setting):
    async with serve() as (url, _):
        status, error = error_in(await said(url, sent))
    assert (status, error["code"]) == (431, 431)
    assert setting in error["message"]


async def test_a_trailer_without_an_end_ends_the_connection(serve):
    head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nh: "
    async with serve() as (url, _):
        assert b"431" in await said(url, head + b"a" * 500_000)


async def test_what_is_no_http_is_refused_in_the_error_shape(serve):
    async with serve() as (url, _):
        assert error_in(await said(url, b"what\r\n\r\n"))[1]["type"] == "BadRequestError"


async def test_headers_that_do_not_end_in_time_are_answered_with_408(serve):
    async with serve(header_timeout_s=0.05) as (url, _):
        status, error = error_in(await said(url, GET))
    assert status == 408
    assert "--header-timeout-s" in error["message"]


async def test_a_body_that_stands_still_is_answered_with_408(serve):
    head = b"POST /tokenize HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    async with serve(body_timeout_s=0.05) as (url, _):
        assert error_in(await said(url, head))[0] == 408


async def test_a_silent_connection_is_closed(serve):
    async with serve(keep_alive_timeout_s=0.05) as (url, _):
        assert await said(url, b"") == b""


async def test_a_connection_serves_many_requests_under_all_bounds(serve):
    async with serve(max_headers=10) as (url, _), httpx.AsyncClient() as client:
        answers = [await client.get(f"{url}/version") for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}


async def test_an_idle_connection_gives_way_to_a_new_one(serve):
    async with serve(max_connections=1) as (url, _):
        reader, writer = await connected(url)
        assert b"200 OK" in await said(url, GET + b"connection: close\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_beyond_those_of_its_address_is_refused(serve):
    async with serve(max_connections_per_address=1) as (url, _):
        _, writer = await connected(url)
        status, error = error_in(await said(url, b""))
        writer.close()
    assert status == 503
    assert "--max-connections-per-address" in error["message"]


class Idle:
    def __init__(self, address, idle_since):
        self.address, self.idle_since, self.closed = address, idle_since, False

    def close_idle(self):
        self.closed = True


def limits(**changes):
    return ConnectionLimits.from_config(ServerConfig(**changes))


def test_the_connection_that_gives_way_is_the_oldest_idle_one_of_the_address_with_most():
    connections = Connections(limits(max_connections=4))
    open_ = [Idle("a", 1.0), Idle("b", 3.0), Idle("b", 2.0), Idle("b", None)]
    assert [connections.add(one, 0.0) for one in open_] == [None] * 4
    assert connections.add(Idle("c", 4.0), 0.0) is None
    assert [one.closed for one in open_] == [False, False, True, False]


def test_without_an_idle_connection_a_new_one_is_refused_and_that_is_logged_once(caplog):
    connections = Connections(limits(max_connections=1))
    connections.add(Idle("a", None), 0.0)
    assert [connections.add(Idle("b", 0.0), float(now)) is None for now in (0, 1)] == [False, False]
    assert len(caplog.records) == 1
    assert "--max-connections" in caplog.text


MANY = 1000


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * MANY + b"1]",
        b"[" + b"[]," * (MANY // 8) + b"[]]",
        b'{"a":{' + b",".join(b'"%d":1' % i for i in range(MANY // 8)) + b"}}",
        b"[" * 200,
        b'["' + b"a\\\\" * 60_000 + b'",' + b"1," * MANY + b"1]",
    ],
    ids=["values", "lists", "members", "levels", "after a long string"],
)
def test_json_that_stands_for_too_much_is_refused_before_it_is_parsed(data):
    with pytest.raises(MalformedBody):
        check_json_size(data, MANY)


@pytest.mark.parametrize("text", [",[{:" * MANY, '\\",' * MANY, "\\" * MANY, '"[' * 100_000])
def test_what_stands_in_strings_is_not_counted(text):
    check_json_size(json.dumps({"prompt": text, "n": 1}).encode(), MANY)


async def test_too_many_values_are_a_400_that_names_the_setting(folder):
    app = pretend_app(folder, PretendClient(), ServerConfig(max_json_values=100))
    async with http(app) as client:
        answer = await client.post("/detokenize", json={"tokens": [1] * 200})
    assert answer.status_code == 400
    assert "--max-json-values" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)]
)
async def test_a_packed_body_is_read(folder, name, pack):
    body = pack(b'{"prompt": "Hi"}')
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/tokenize", content=body, headers={**JSON, "content-encoding": name})
    assert answer.json()["count"] == 2


@pytest.mark.parametrize(
    ("body", "name", "status"),
    [
        (gzip.compress(b" " * 50_000_000, 1), "gzip", 413),
        (b"nothing", "gzip", 400),
        (gzip.compress(b"{}")[:-4], "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
    ids=["too large", "not packed", "cut", "unknown", "twice"],
)
async def test_a_packed_body_that_cannot_be_read_is_refused(folder, body, name, status):
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/tokenize", content=body, headers={**JSON, "content-encoding": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


async def test_bodies_are_bounded_together_and_forgotten_when_their_requests_end():
    gate, held = asyncio.Event(), asyncio.Semaphore(0)

    async def app(scope, receive, send):
        await receive()
        held.release()
        await gate.wait()

    limit = BodyLimitMiddleware(app, 100)
    body = {"type": "http.request", "body": b"a" * 100, "more_body": False}

    async def ask():
        await limit({"type": "http", "path": "/", "headers": []}, lambda: asyncio.sleep(0, body), None)

    asking = [asyncio.create_task(ask()) for _ in range(MAX_LARGE_BODIES)]
    for _ in asking:
        await held.acquire()
    with pytest.raises(Overloaded):
        await ask()
    gate.set()
    await asyncio.gather(*asking)
    await ask()


def test_unpacking_ends_at_the_bound():
    assert len(decompress(gzip.compress(b"a" * 1000), "gzip", 1000)) == 1000


@pytest.mark.parametrize("number", [2**63, 2**64, 10**400])
async def test_an_integer_of_any_size_in_a_field_that_nothing_knows_is_ignored(folder, number):
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "unheard_of": number})
    assert answer.status_code == 200


NUMBERS = ("temperature", "top_k", "top_p", "min_p", "n", "best_of", "max_tokens", "min_tokens", "seed", "logprobs")
MORE_NUMBERS = ("prompt_logprobs", "stream_interval", "priority", "truncate_prompt_tokens", "repetition_penalty")


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**64), 10**400])
@pytest.mark.parametrize("name", NUMBERS + MORE_NUMBERS)
async def test_an_integer_of_more_than_64_bits_in_a_known_field_is_refused(folder, name, number):
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/v1/completions", json={"prompt": "a", name: number})
    assert answer.status_code == 400, answer.text


async def test_a_seed_of_64_bits_is_refused_as_pydantic_says_it(folder):
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/v1/completions", json={"prompt": "a", "seed": 2**63})
    assert "less than or equal to 9223372036854775807" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {str(i): 1 for i in range(2000)}),
        ("stop_token_ids", [1] * 5000),
        ("allowed_token_ids", [1] * 300_000),
        ("bad_words", ["a"] * 200),
        ("stop", ["a"] * 200),
    ],
)
async def test_a_list_that_is_too_long_is_refused_before_its_items_are_read(folder, field, value):
    async with http(pretend_app(folder, PretendClient())) as client:
        for body in ({field: value}, {"sampling_params": {field: value}}):
            answer = await client.post("/generate", json={"prompt": "a", **body})
            assert answer.status_code == 400
            assert f"`{field}` takes at most" in answer.json()["error"]["message"]


async def test_messages_and_their_parts_are_bounded_together(folder):
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9000}] * 2
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": messages})
    assert "16384" in answer.json()["error"]["message"]


async def test_an_error_shows_the_beginning_of_a_long_value_only(folder):
    async with http(pretend_app(folder, PretendClient())) as client:
        answer = await client.post("/v1/completions", json={"prompt": [[]] * 50_000})
    assert answer.status_code == 400
    assert len(answer.content) < 2000
