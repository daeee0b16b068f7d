"""The order of the events of a streamed message, as Anthropic publishes it, and their types, as its client has them."""

import json

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(RawMessageStreamEvent)
DELTAS = {
    "text": ["text_delta"],
    "thinking": ["thinking_delta", "signature_delta"],
    "tool_use": ["input_json_delta"],
}


class EventOrder:
    """Accepts the events of one message: "before" it, "between" and "within" its blocks, "ended", "over"."""

    def __init__(self):
        self.state, self.index, self.block = "before", -1, None

    def take(self, event):
        """Raise AssertionError for an event that may not come now."""
        getattr(self, f"_{event['type']}")(event)

    def _message_start(self, event):
        assert self.state == "before"
        message = event["message"]
        assert (message["content"], message["stop_reason"]) == ([], None)
        self.state = "between"

    def _ping(self, event):
        assert self.state in ("between", "within")

    def _content_block_start(self, event):
        assert self.state == "between"
        self.index += 1
        assert event["index"] == self.index
        self.state, self.block = "within", event["content_block"]["type"]

    def _content_block_delta(self, event):
        assert (self.state, event["index"]) == ("within", self.index)
        assert event["delta"]["type"] in DELTAS[self.block]

    def _content_block_stop(self, event):
        assert (self.state, event["index"]) == ("within", self.index)
        self.state = "between"

    def _message_delta(self, event):
        assert self.state == "between"
        assert event["delta"]["stop_reason"]
        self.state = "ended"

    def _message_stop(self, event):
        assert self.state == "ended"
        self.state = "over"


async def checked_stream(client, **asked):
    """The message that the events of a stream add up to; each event fits the client's types, and their order."""
    order, snapshot, buffers = EventOrder(), None, {}
    async with client.messages.with_streaming_response.create(**asked, stream=True) as response:
        kind = None
        async for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert event["type"] == kind
                order.take(event)
                if kind == "ping":
                    continue
                checked = EVENT.validate_python(event)
                snapshot = accumulate_event(event=checked, current_snapshot=snapshot, json_bufs=buffers)
    assert order.state == "over"
    return snapshot


async def both(client, **asked):
    """The message, whole; and streamed, which must be the same. Events are checked on the way."""
    whole = await client.messages.create(**asked)
    streamed = await checked_stream(client, **asked)
    for message in (whole, streamed):
        message.id = "msg_"
    for one, other in zip(whole.content, streamed.content, strict=True):
        if one.type == "tool_use":
            one.id = other.id = "id"
    assert whole.to_dict(exclude_none=True) == streamed.to_dict(exclude_none=True)
    return whole
