"""WebSockets on the server's socket: keys, origins, and bounds on connections, messages, audio and time."""

import asyncio
import json
import struct

import httpx
import numpy as np
import pytest
from api_rig import api_app
from fake_client import PretendClient
from live_server import live
from realtime_rig import COMMIT, append, pcm, quiet, realtime
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from quire.server.connections import websocket_protocol
from quire_apis.realtime.client_events import EventFault, read_event
from quire_apis.realtime.pcm import ALAW, ULAW, AudioFormat, wav_file

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


def made(folder, options=None, **settings):
    """The application, and its settings, which the server needs too."""
    settings = {"port": 0, "disable_access_log": True, "log_level": "warning", **settings}
    app = api_app(folder, PretendClient(), ["realtime"], {"realtime": options or {}}, settings=settings)
    return app, quiet(**settings)


async def refusal(url, **settings):
    with pytest.raises(InvalidStatus) as caught:
        async with realtime(url, **settings):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]


async def test_a_handshake_needs_a_key_as_requests_do(folder):
    app, config = made(folder, api_key=("secret",))
    async with live(app, config) as (url, _):
        status, error = await refusal(url)
        assert (status, error) == (401, "Unauthorized")
        assert (await refusal(url, additional_headers={"Authorization": "Bearer no"}))[0] == 401
        assert (await refusal(url, subprotocols=["realtime", "openai-insecure-api-key.no"]))[0] == 401
        for headers in ({"Authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            async with realtime(url, additional_headers=headers) as client:
                assert client.socket.subprotocol is None
        offered = ["realtime", "openai-insecure-api-key.secret", "openai-beta.realtime-v1"]
        async with realtime(url, subprotocols=offered) as client:
            assert client.socket.subprotocol == "realtime"
            assert "secret" not in str(client.socket.response.headers)
        async with httpx.AsyncClient() as plain:  # only WebSockets have subprotocols
            headers = {"Sec-WebSocket-Protocol": "openai-insecure-api-key.secret"}
            assert (await plain.get(f"{url}/v1/models", headers=headers)).status_code == 401


async def test_web_pages_of_other_origins_are_refused(folder):
    app, config = made(folder, allowed_origins=("https://mine.example",))
    async with live(app, config) as (url, _):
        status, error = await refusal(url, origin="https://other.example")
        assert (status, error["type"]) == (403, "PermissionDeniedError")
        assert "--allowed-origins" in error["message"]
        assert (await refusal(url, origin="null"))[0] == 403
        for origin in ("https://mine.example", url):
            async with realtime(url, origin=origin):
                pass


async def test_other_paths_answer_as_if_no_websocket_were_asked_for(folder):
    app, config = made(folder)
    asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    async with live(app, config) as (url, _), httpx.AsyncClient(base_url=url) as plain:
        assert (await plain.get("/health", headers=asked)).status_code == 200
        assert (await plain.get("/v1/realtime")).status_code == 404
        assert (await plain.post("/v1/realtime", headers=asked)).status_code == 404
        assert (await plain.get("/v1/realtime", headers=asked)).status_code == 400  # no valid key of a handshake


async def test_a_websocket_counts_as_a_connection_of_its_address(folder):
    app, config = made(folder, max_connections_per_address=2)
    async with live(app, config) as (url, server):
        async with realtime(url) as first, realtime(url):
            assert (await refusal(url))[0] == 503
            await first.socket.close()
            async with realtime(url):
                pass
        connections = server.config.http_protocol_class.keywords["connections"]
        async with asyncio.timeout(5):
            while len(connections):
                await asyncio.sleep(0.01)


async def test_sessions_audio_and_idle_time_have_bounds(folder):
    options = {"max_sessions": 1, "max_audio_s": 1.0, "idle_timeout_s": 0.2}
    app, config = made(folder, options)
    async with live(app, config) as (url, _):
        async with realtime(url) as client:
            status, error = await refusal(url)
            assert (status, error["type"]) == (503, "ServiceUnavailableError")
            assert "--realtime.max-sessions" in error["message"]
            await client.send(append(pcm(0.6)), append(pcm(0.6)))
            assert "--realtime.max-audio-s" in (await client.error())["message"]
            assert (await client.error())["code"] == "idle_timeout"
            with pytest.raises(ConnectionClosed) as closed:
                await client.next()
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "idle")
        async with realtime(url):
            pass  # the first is no longer counted


async def test_a_message_has_a_largest_size_and_the_turns_that_wait_a_number(folder):
    app, config = made(folder, max_body_bytes=10_000)
    async with live(app, config) as (url, _):
        async with realtime(url) as client:
            await client.send(append(bytes(4000)))
            await client.send(append(bytes(12_000)))
            with pytest.raises(ConnectionClosed) as closed:
                await client.next()
            assert closed.value.rcvd.code == 1009
        async with realtime(url) as client:
            await client.send('{"type": "session.update", "session": {"audio": {"input": {"transcription": null}}}}')
            assert (await client.next())["type"] == "session.updated"
            for _ in range(20):  # nothing waits: they are not transcribed
                await client.send(append(bytes(200)), COMMIT)
                assert (await client.until("conversation.item.done", "error"))[-1]["type"] != "error"


@pytest.mark.parametrize("disabled", [False, True])
async def test_handshakes_are_in_the_access_log_if_there_is_one(folder, caplog, disabled):
    caplog.set_level("INFO")
    app, config = made(folder, disable_access_log=disabled, log_level="info")
    async with live(app, config) as (url, _), realtime(url, "?model=mine"):
        pass
    assert ("/v1/realtime?model=mine" in caplog.text, "connection open" in caplog.text) == (not disabled, not disabled)


async def test_a_shutdown_closes_the_sockets(folder):
    app, config = made(folder)
    async with live(app, config) as (url, server), realtime(url) as client:
        server.should_exit = True
        with pytest.raises(ConnectionClosed) as closed:
            await client.next()
        assert closed.value.rcvd.code == 1012


async def test_a_handshake_that_is_none_and_an_unread_socket_end(folder, monkeypatch):
    monkeypatch.setattr(websocket_protocol, "CLOSE_TIMEOUT_S", 0.2)
    app, config = made(folder)
    async with live(app, config) as (url, server):
        port = int(url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE + b"X-Long: " + b"a" * 9000 + b"\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(HANDSHAKE + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        ping = b"\x89\xfd" + bytes(4) + bytes(125)  # answered, and the answers are never read
        with pytest.raises((TimeoutError, OSError)):
            async with asyncio.timeout(2):
                while True:
                    writer.write(ping * 1000)
                    await writer.drain()
        (held,) = server.server_state.connections
        assert held.transport.get_write_buffer_size() < 1 << 20
        server.should_exit = True  # ends although the buffer is never empty


def test_large_events_are_read_and_their_bounds_hold():
    audio = bytes(range(256)) * 4096
    read = read_event(json.dumps({**append(audio), "event_id": "a", "other": [{"b": 1}]}))
    assert (read.audio, read.event.event_id) == (audio, "a")
    with pytest.raises(EventFault, match="padding before the end"):
        read_event(json.dumps({**append(audio), "audio": "AAA=" + "A" * (1 << 19)}))


def test_telephone_codes_become_the_samples_of_the_standard():
    """Values of ITU-T G.711, tables 1a and 2a, at a scale of 16 bits."""

    def samples(codes, name):
        return np.frombuffer(wav_file(bytes(codes), AudioFormat(name, 8000))[44:], "<i2").tolist()

    assert samples([0xFF, 0x7F, 0x80, 0x00, 0xF0, 0xEF], ULAW) == [0, 0, 32124, -32124, 120, 132]
    assert samples([0xD5, 0x55, 0xAA, 0x2A, 0xC5, 0xF5], ALAW) == [8, -8, 32256, -32256, 264, 528]
    header = wav_file(bytes(4), AudioFormat())[:44]
    assert struct.unpack("<I", header[24:28]) == (24_000,)


async def test_no_more_connections_than_the_server_reads(folder):
    """A client of plain WebSockets may use any path that is one, and no other."""
    app, config = made(folder)
    async with live(app, config) as (url, _):
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url.replace("http", "ws", 1) + "/v1/nothing"):
                pass
        assert caught.value.response.status_code == 404
