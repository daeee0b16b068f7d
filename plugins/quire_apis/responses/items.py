"""Checks the items of an input and completes them: ids, statuses, and lists of parts in place of plain texts."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from quire.plugin import BadRequest

Item: TypeAlias = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
CALLS: Mapping[str, str] = {"function_call": "fc", "custom_tool_call": "ctc"}
CALL_OUTPUTS: Mapping[str, str] = {"function_call_output": "fco", "custom_tool_call_output": "cto"}
ADDED_TOOLS = "additional_tools"
REFERENCE = "item_reference"
IGNORED = (
    "compaction",
    "compaction_summary",
    "compaction_trigger",
    "configuration_update",
    "ghost_snapshot",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "program",
)
"""Items that say nothing to the model here. So do calls of tools that were run elsewhere, and their outputs: all other
items whose type ends with one of `IGNORED_ENDINGS`."""

IGNORED_ENDINGS = ("_call", "_output")
TEXT_PARTS: Mapping[str, str] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Part type → the field that holds its text."""

MAX_PARTS = 16_384
_LISTS = ("content", "output", "summary", "tools")
_SEALED = "quire1."


def new_id(prefix: str) -> str:
    """A random id that cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(24)}"


def input_items(given: str | Sequence[Item] | None, find: Callable[[str], Item] | None = None) -> list[Item]:
    """The items of an input, complete. Raises `BadRequest`, which names the wrong item.

    find: returns the stored item with an id, for references.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [_message({"role": "user", "content": given}, "input")]
    lists = (item.get(name) for item in given for name in _LISTS)
    if sum(len(one) for one in lists if isinstance(one, list)) > MAX_PARTS:
        raise BadRequest(f"`input` may have at most {MAX_PARTS} parts in all its items.", "input")
    return [_item(item, f"input[{number}]", find) for number, item in enumerate(given)]


def references(given: str | Sequence[Item] | None) -> list[str]:
    """The ids of the stored items that an input refers to."""
    items = given if isinstance(given, list) else ()
    return [item["id"] for item in items if _kind(item) == REFERENCE and isinstance(item.get("id"), str)]


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`, which clients send back without reading it; encoded, not encrypted."""
    return _SEALED + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(given: Any) -> str:
    """The reasoning of an `encrypted_content`; "" for one that another service made."""
    if not isinstance(given, str) or not given.startswith(_SEALED):
        return ""
    try:
        return base64.urlsafe_b64decode(given.removeprefix(_SEALED)).decode()
    except (binascii.Error, ValueError):
        return ""


def _kind(item: Item) -> Any:
    """The type of an item, which messages and references may leave out."""
    if item.get("type") is not None:
        return item["type"] if isinstance(item["type"], str) else str(item["type"])
    if "role" in item:
        return "message"
    return REFERENCE if set(item) == {"id"} else None


def _item(item: Item, where: str, find: Callable[[str], Item] | None) -> Item:
    kind = _kind(item)
    if kind == "message":
        return _message(item, where)
    if kind == "reasoning":
        return _reasoning(item, where)
    if kind in CALLS:
        return _call(item, kind, where)
    if kind in CALL_OUTPUTS:
        return _call_output(item, kind, where)
    if kind == REFERENCE and find is not None:
        return dict(find(_text(item, "id", where)))
    if kind == ADDED_TOOLS:
        tools = item.get("tools")
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise BadRequest(f"`{where}.tools` must be a list of objects.", "input")
        return {"id": new_id("at"), "role": "developer", **item}
    if isinstance(kind, str) and (kind in IGNORED or kind.endswith(IGNORED_ENDINGS)):
        return {"id": new_id("item"), **item}
    raise BadRequest(f"`{where}` is of an unknown type, {kind!r:.60}.", "input")


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if role not in ROLES:
        raise BadRequest(f"`{where}.role` must be one of {', '.join(ROLES)}; got {role!r:.40}.", "input")
    content = item.get("content")
    if isinstance(content, str):
        content = [text_part(content, role)]
    elif isinstance(content, list):
        content = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
    else:
        raise BadRequest(f"`{where}.content` must be a text or a list of parts.", "input")
    kept = {name: item[name] for name in ("phase",) if item.get(name) is not None}
    return {
        "id": item["id"] if isinstance(item.get("id"), str) else new_id("msg"),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": content,
        **kept,
    }


def text_part(text: str, role: str) -> Item:
    """The part of a message of this role that holds a text."""
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _part(part: Any, where: str) -> Item:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in TEXT_PARTS:
        _text(part, TEXT_PARTS[kind], where)
        return {"annotations": [], **part} if kind == "output_text" else dict(part)
    if kind == "input_image":
        if not isinstance(part.get("image_url"), str):
            raise BadRequest(f"`{where}.image_url` must be a URL: files are not kept here.", "input")
        return {"detail": "auto", **{name: value for name, value in part.items() if value is not None}}
    if kind == "input_audio":
        return dict(part)
    if kind == "input_file":
        raise BadRequest(f"`{where}`: files are not read here; send their text as `input_text`.", "input")
    raise BadRequest(f"`{where}` must be a part of a known type; got {kind!r:.60}.", "input")


def _reasoning(item: Item, where: str) -> Item:
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts is None:
            continue
        if not isinstance(parts, list):
            raise BadRequest(f"`{where}.{name}` must be a list of parts.", "input")
        for number, part in enumerate(parts):
            if not isinstance(part, dict):
                raise BadRequest(f"`{where}.{name}[{number}]` must be an object.", "input")
            _text(part, "text", f"{where}.{name}[{number}]")
    return {"summary": [], **_identified({k: v for k, v in item.items() if v is not None}, "rs")}


def _call(item: Item, kind: str, where: str) -> Item:
    for name in ("call_id", "name", "arguments" if kind == "function_call" else "input"):
        _text(item, name, where)
    return {**_identified(item, CALLS[kind]), "status": _status(item)}


def _call_output(item: Item, kind: str, where: str) -> Item:
    _text(item, "call_id", where)
    output = item.get("output")
    if isinstance(output, list):
        output = [_part(part, f"{where}.output[{number}]") for number, part in enumerate(output)]
    elif not isinstance(output, str):
        raise BadRequest(f"`{where}.output` must be a text or a list of parts.", "input")
    return {**_identified(item, CALL_OUTPUTS[kind]), "output": output, "status": _status(item)}


def _status(item: Item) -> str:
    return "incomplete" if item.get("status") == "incomplete" else "completed"


def _identified(item: Item, prefix: str) -> Item:
    return {**item, "id": item["id"] if isinstance(item.get("id"), str) else new_id(prefix)}


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"`{where}.{name}` must be a text.", "input")
    return value
