"""Turns the tools and the tool choice of the Messages API into those of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.plugin import BadRequest
from quire_apis.anthropic.schemas import MessageTool, MessageToolChoice

SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
"""Beginnings of the types of tools that Anthropic's servers run."""


def _schema(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_STRING = {"type": "string"}
_LINE = {"type": "integer"}
_PATH = {"type": "string", "description": "Absolute path of the file or directory."}
_COMMANDS = ["view", "create", "str_replace", "insert"]

CLIENT_TOOLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a persistent bash session.",
        _schema([], command=_STRING, restart={"type": "boolean", "description": "Start a new session instead."}),
    ),
    "text_editor_": (
        "View, create and edit text files.",
        _schema(
            ["command", "path"],
            command={"type": "string", "enum": _COMMANDS},
            path=_PATH,
            file_text=_STRING,
            old_str=_STRING,
            new_str=_STRING,
            insert_line=_LINE,
            insert_text=_STRING,
            view_range={"type": "array", "items": _LINE},
        ),
    ),
    "memory_": (
        "Keep notes in files below /memories.",
        _schema(
            ["command"],
            command={"type": "string", "enum": [*_COMMANDS, "delete", "rename"]},
            path=_PATH,
            file_text=_STRING,
            old_str=_STRING,
            new_str=_STRING,
            insert_line=_LINE,
            insert_text=_STRING,
            old_path=_PATH,
            new_path=_PATH,
            view_range={"type": "array", "items": _LINE},
        ),
    ),
}
"""Description and parameters of the tools that Anthropic's models know by type and that the client runs, by the
beginning of the type."""


def chat_tools(tools: Sequence[MessageTool]) -> list[dict[str, Any]]:
    """The tools that the client runs. Those that Anthropic's servers would run are left out beside others.

    Raises `BadRequest` if nothing is left, and for types that are not known.
    """
    found, left_out = [], []
    for number, tool in enumerate(tools):
        if tool.type is not None and tool.type.startswith(SERVER_TOOLS):
            left_out.append(tool.type)
        else:
            found.append(_chat_tool(tool, number))
    if left_out and not found:
        raise BadRequest(
            f"`tools`: {', '.join(left_out)!s:.200} would run at Anthropic's servers; this server has no such tools.",
            "tools",
        )
    return found


def _chat_tool(tool: MessageTool, number: int) -> dict[str, Any]:
    description, schema = tool.description, tool.input_schema
    if schema is None:
        known = [CLIENT_TOOLS[begin] for begin in CLIENT_TOOLS if (tool.type or "").startswith(begin)]
        if not known:
            raise BadRequest(
                f"`tools[{number}]` needs `input_schema`; the type {tool.type!r:.60} is not known here.",
                f"tools[{number}]",
            )
        described, schema = known[0]
        description = description or described
    function: dict[str, Any] = {"name": tool.name, "parameters": schema}
    if description is not None:
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def choice_fields(choice: MessageToolChoice) -> dict[str, Any]:
    """The fields of the chat request for a tool choice. Raises `BadRequest` for one of type tool without a name."""
    fields: dict[str, Any] = {"tool_choice": {"any": "required"}.get(choice.type, choice.type)}
    if choice.type == "tool":
        if not choice.name:
            raise BadRequest("`tool_choice` of type tool needs `name`.", "tool_choice")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields
