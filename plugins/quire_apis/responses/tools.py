"""The tools of a response: which are offered to the model and as what, and what its calls of them are.

Functions are offered as they are, custom tools as functions with one text, functions of a namespace under its name.
Tools that OpenAI or the client's own service runs (web search, files, shells, MCP servers) are not offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.plugin import BadRequest
from quire_apis.responses.messages import CUSTOM_INPUT
from quire_apis.responses.schemas import MAX_TOOLS

Json = dict[str, Any]
MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the model may call. name: of the client, without its namespace."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    chat: fields of the chat's body. by_name: what each offered function is. call_name: the reverse, by namespace and
    name.
    """

    chat: Mapping[str, Any] = field(default_factory=dict)
    by_name: Mapping[str, OfferedTool] = field(default_factory=dict)

    @property
    def call_name(self) -> Mapping[tuple[str, str], str]:
        return {(tool.namespace, tool.name): name for name, tool in self.by_name.items()}


def read_tools(given: Sequence[Json], choice: str | Json | None, parallel: bool) -> Tools:
    """The tools of a request. Raises `BadRequest`."""
    offered: dict[str, OfferedTool] = {}
    functions: list[Json] = []
    for number, tool in enumerate(given):
        _offer(tool, f"tools[{number}]", "", offered, functions)
    chosen = _choice(choice, offered, bool(given))
    if not functions:
        return Tools()
    fields = {"tools": functions, "tool_choice": chosen, "parallel_tool_calls": parallel}
    return Tools(fields, offered)


def _offer(tool: Json, where: str, namespace: str, offered: dict[str, OfferedTool], functions: list[Json]) -> None:
    """Add a tool to the functions that are offered, if it is a kind that the client runs."""
    if len(functions) >= MAX_TOOLS:
        raise BadRequest(f"`tools` may have at most {MAX_TOOLS} functions.", "tools")
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise BadRequest(f"`{where}.type` must be a text such as function.", "tools")
    if kind == "namespace" and not namespace:
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
            raise BadRequest(f"`{where}.tools` must be a list of objects.", "tools")
        for number, one in enumerate(inner):
            _offer(one, f"{where}.tools[{number}]", _name(tool, where), offered, functions)
    elif kind in ("function", "custom"):
        name = _name(tool, where)
        called = _joined(namespace, name)
        offered[called] = OfferedTool("custom" if kind == "custom" else "function", name, namespace)
        functions.append({"type": "function", "function": {"name": called, **_function(tool, kind, where)}})


def _name(tool: Json, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"`{where}.name` must be a text.", "tools")
    return name


def _joined(namespace: str, name: str) -> str:
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _function(tool: Json, kind: str, where: str) -> Json:
    """Description and parameters of the function that a tool is offered as."""
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise BadRequest(f"`{where}.description` must be a text.", "tools")
    if kind == "custom":
        schema = {"type": "string", "description": _custom_format(tool)}
        parameters: Any = {
            "type": "object",
            "properties": {CUSTOM_INPUT: schema},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
        return {"description": description or "", "parameters": parameters}
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(f"`{where}.parameters` must be a JSON schema.", "tools")
    strict = tool.get("strict")
    found = {"description": description, "parameters": parameters, "strict": strict if strict is True else None}
    return {name: value for name, value in found.items() if value is not None}


def _custom_format(tool: Json) -> str:
    """What the model reads about the text that a custom tool takes."""
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        return f"The input, a text of this grammar ({form.get('syntax')}):\n{form.get('definition')}"
    return "The input, any text."


def _choice(choice: str | Json | None, offered: Mapping[str, OfferedTool], has_tools: bool) -> Any:
    """`tool_choice` of the chat."""
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in MODES:
            raise BadRequest(f"`tool_choice` must be one of {', '.join(MODES)}, or an object.", "tool_choice")
        if choice == "required" and not offered:
            raise BadRequest(
                "`tool_choice` demands a call, and no tool can be offered to the model."
                if has_tools
                else "`tool_choice` demands a call and needs `tools`.",
                "tool_choice",
            )
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return {"type": "function", "function": {"name": _chosen(choice, offered)}}
    if kind == "allowed_tools":
        return _allowed(choice, offered)
    raise BadRequest(f"`tool_choice` names a tool of type {kind!r:.40}, which is not offered here.", "tool_choice")


def _chosen(choice: Json, offered: Mapping[str, OfferedTool]) -> str:
    """The name under which the tool that a choice names is offered."""
    for called, tool in offered.items():
        names = (tool.name, called) if choice.get("namespace") in (None, tool.namespace) else ()
        if choice.get("name") in names and tool.kind == choice["type"]:
            return called
    raise BadRequest(f"`tool_choice` names {choice.get('name')!r:.80}, which is not among the tools.", "tool_choice")


def _allowed(choice: Json, offered: Mapping[str, OfferedTool]) -> Any:
    mode, tools = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise BadRequest("`tool_choice` of allowed tools needs a `mode`, auto or required, and `tools`.", "tool_choice")
    names = [_chosen(tool, offered) for tool in tools if _is_offered_kind(tool)]
    if not names and mode == "required":
        raise BadRequest("`tool_choice` demands a call, and none of its tools can be offered.", "tool_choice")
    if not names:
        return "none"
    chosen = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}


def _is_offered_kind(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") in ("function", "custom")
