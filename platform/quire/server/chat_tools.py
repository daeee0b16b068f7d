"""What a chat request may ask of tools, and the wire shape of the calls that come of it."""

from __future__ import annotations

from typing import Any

from quire.errors import BadRequest
from quire.server.models import Served
from quire.server.schema_requests import ChatRequest, NamedTool
from quire.server.service import Service
from quire.text.tools import CalledTool, ToolDelta, ToolReader


def tool_reader(service: Service, served: Served, fields: ChatRequest) -> ToolReader | None:
    """A reader of calls when the request offers tools and lets the model choose; `BadRequest` if that cannot be."""
    choice = _checked_choice(fields)
    if choice == "none":
        return None
    if choice != "auto":
        raise BadRequest(
            "`tool_choice` that demands a call is not supported: no loaded plugin can constrain output to calls."
            ' Use "auto" or "none".',
            "tool_choice",
        )
    if not service.config.enable_auto_tool_choice or served.tool_parser is None:
        raise BadRequest(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "tool_choice"
        )
    offered = [tool.model_dump(exclude_unset=True) for tool in fields.tools or ()]
    return ToolReader(served.tool_parser, offered, service.registry)


def _checked_choice(fields: ChatRequest) -> str | NamedTool:
    if fields.tools is None:
        if fields.tool_choice not in (None, "none"):
            raise BadRequest("`tool_choice` needs `tools`.", "tool_choice")
        return "none"
    if not fields.tools:
        raise BadRequest("`tools` must not be an empty list; leave it out instead.", "tools")
    choice = fields.tool_choice or "auto"
    if isinstance(choice, NamedTool):
        names = [tool.function.name for tool in fields.tools]
        if choice.function.name not in names:
            raise BadRequest(
                f"`tool_choice` names {choice.function.name!r:.80}, which is not among the tools.", "tool_choice"
            )
    return choice


def shows_special(reader: ToolReader | None, served: Served) -> bool:
    """Whether the delimiters of calls are special tokens, which must then stay in the text."""
    if reader is None:
        return False
    special = served.tokenizer.special_ids
    ids = (served.tokenizer.vocab.get(mark) for mark in (reader.parser.start, reader.parser.end))
    return any(token_id in special for token_id in ids)


def whole_call(call: CalledTool) -> dict[str, Any]:
    """A call in a whole answer."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_delta(delta: ToolDelta) -> dict[str, Any]:
    """Part of a call in a stream."""
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
