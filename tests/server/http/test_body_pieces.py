"""Large answers in pieces."""

import pytest

from quire.server.http.middleware import BLOCK_BYTES, ResponseBlocksMiddleware


async def sent(*messages, kind="http"):
    found = []

    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    async def keep(message):
        found.append(message)

    await ResponseBlocksMiddleware(app)({"type": kind}, None, keep)
    return found


def body(data, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.mark.parametrize("more", [False, True])
async def test_a_large_body_is_sent_in_pieces_that_make_up_the_whole(more):
    data = bytes(range(256)) * (5 * BLOCK_BYTES // 512)
    found = await sent({"type": "http.response.start", "status": 200}, body(data, more))
    assert found[0]["status"] == 200
    assert [len(message["body"]) for message in found[1:]] == [BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES // 2]
    assert b"".join(message["body"] for message in found[1:]) == data
    assert [message["more_body"] for message in found[1:]] == [True, True, more]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES])
async def test_others_are_sent_as_they_are(size):
    message = body(bytes(size))
    assert (await sent(message))[0] is message


async def test_what_is_not_http_is_left_alone():
    message = {"type": "websocket.send", "bytes": bytes(3 * BLOCK_BYTES)}
    assert await sent(message, kind="websocket") == [message]
