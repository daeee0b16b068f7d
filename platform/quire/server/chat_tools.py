"""What a chat request may ask of tools, what the engine must be told of it, and the wire shape of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import BadRequest
from quire.records import ToolParser
from quire.server.constraints import FIELDS as CONSTRAINTS
from quire.server.models import Served
from quire.server.schema_requests import AllowedToolsChoice, ChatRequest, NamedTool, Tool
from quire.server.service import Service
from quire.structured import Structured, as_json
from quire.text.json_calls import JSON_CALLS
from quire.text.tools import CalledTool, ToolDelta, ToolReader

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = "tools"
KIND = "calls"
STRICT = "structural_tag"


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """How the answers of one request call tools.

    offered: all tools. demanded: those of which the answer must consist, none if it is free. kinds: of constraints
    that there are. at_most: calls of an answer, None = any
    number. named: whether the request named the tool; then calls are no reason to end.
    """

    reader: ToolReader
    parser: ToolParser
    offered: Sequence[Tool]
    kinds: Collection[str]
    demanded: Sequence[Tool] = ()
    at_most: int | None = None
    named: bool = False

    def finish(self, reason: str | None, num_calls: int) -> str | None:
        """Why an answer ended, as clients are told."""
        return "tool_calls" if num_calls and reason == "stop" and not self.named else reason

    def form(self, template: str, form: Structured | None, after: str | None) -> Structured | None:
        """What holds an answer to its form where it may also be a call instead. after: what comes before either."""
        frame, schema = self.parser.frame, _schema_of(form)
        if form is None:
            return None
        if schema is None or frame is None or self.parser.channels is not None or KIND not in self.kinds:
            return replace(form, after=after)
        tags = [self._tag(tool, template, alone=True) for tool in self.offered]
        tags.append({"begin": "", "schema": schema, "end": "", "owner": f"`{form.param}`", "param": form.param})
        return _held(form, KIND, {"tags": tags, "at_least": 1, "at_most": 1}, after)

    def demand(self, template: str, after: str | None = None, lead: tuple[str, str] | None = None) -> Structured:
        """What holds an answer to the demanded calls. after: the text that comes before them, if one does.

        lead: delimiters of a text that may come before them.
        """
        frame = self.parser.frame
        assert frame is not None
        tags = [self._tag(tool, template, self.at_most == 1) for tool in self.demanded]
        whole = frame(self.demanded[0].function.name, template)
        source: dict[str, Any] = {"tags": tags, "at_least": 1, "at_most": self.at_most}
        if self.at_most != 1:
            source |= {"separator": whole.between, "first": whole.first, "last": whole.last}
        if lead is not None:
            source["lead"] = {"begin": lead[0], "end": lead[1]}
        return _held(None, KIND, source, after)

    def strict(self, template: str, after: str | None = None) -> Structured | None:
        """What holds calls, if the model makes any, to the schemas of tools that are strict; None if none is.

        Only for formats whose calls are JSON and begin with a delimiter: elsewhere nothing says that one begins.
        """
        frame, start = self.parser.frame, self.parser.start
        if self.demanded or frame is None or not start or STRICT not in self.kinds:
            return None
        if not any(tool.function.strict for tool in self.offered):
            return None
        tags = [self._tag(tool, template, alone=True) for tool in self.offered]
        if not all(tag["begin"].startswith(start) for tag in tags):
            return None
        for tag, tool in zip(tags, self.offered, strict=True):
            if not tool.function.strict:
                tag["schema"] = {"type": "object"}
                del tag["separators"]
        return _held(None, STRICT, {"structures": tags, "triggers": [start]}, after)

    def _tag(self, tool: Tool, template: str, alone: bool) -> dict[str, Any]:
        """A call of a tool. alone: with what stands around all calls."""
        assert self.parser.frame is not None
        frame = self.parser.frame(tool.function.name, template)
        first, last = (frame.first, frame.last) if alone else ("", "")
        number = next(i for i, offered in enumerate(self.offered) if offered is tool)
        return {
            "begin": first + frame.before,
            "schema": tool.function.parameters or NO_PARAMETERS,
            "end": frame.after + last,
            "separators": [frame.comma, frame.colon],
            "owner": f"the parameters of the tool {tool.function.name!r}",
            "param": f"tools[{number}].function.parameters",
        }


def _held(form: Structured | None, kind: str, source: Mapping[str, Any], after: str | None) -> Structured:
    """A constraint made of tools, with what a form says beside its schema. `BadRequest` names the tools."""
    try:
        text = as_json(source, TOOLS)
        if form is not None:
            return replace(form, kind=kind, source=text, after=after, param=TOOLS)
        return Structured(kind=kind, source=text, after=after, param=TOOLS)
    except BadRequest as error:
        raise BadRequest(f"`tools`: {error.message}", "tools") from error


def _schema_of(form: Structured | None) -> Any:
    """The schema that a form is, None if it is of another kind."""
    if form is None or form.kind not in ("json_schema", "json_object"):
        return None
    try:
        return json.loads(form.source) if form.kind == "json_schema" else {"type": "object"}
    except (ValueError, RecursionError):  # which a back end will refuse with the reason
        return None


def with_allowed_tools(fields: ChatRequest) -> ChatRequest:
    """The same request with only the tools that its `tool_choice` allows; `BadRequest` for one that is not offered."""
    if not isinstance(fields.tool_choice, AllowedToolsChoice):
        return fields
    allowed = fields.tool_choice.allowed_tools
    names, offered = [tool.function.name for tool in allowed.tools], fields.tools or []
    for name in names:
        _check_offered(name, [tool.function.name for tool in offered])
    tools = [tool for tool in offered if tool.function.name in names]
    return fields.model_copy(update={"tools": tools, "tool_choice": allowed.mode})


def _check_offered(name: str, offered: Collection[str]) -> None:
    if name not in offered:
        raise BadRequest(f"`tool_choice` names {name!r:.80}, which is not among the tools.", "tool_choice")


def tool_use(service: Service, served: Served, fields: ChatRequest) -> ToolUse | None:
    """How tools are called, None if they are not; `BadRequest` for what cannot be."""
    choice = _checked_choice(fields)
    tools, kinds = fields.tools or (), service.rules.grammar_kinds
    offered = [tool.model_dump(exclude_unset=True) for tool in tools]
    at_most = 1 if fields.parallel_tool_calls is False else None
    if choice == "none":
        return None
    if choice == "auto":
        if not service.config.enable_auto_tool_choice or served.tool_parser is None:
            raise BadRequest(
                '"auto" tool choice requires '
                + (
                    "--tool-call-parser: how the model writes calls is not known from its chat template"
                    if service.config.enable_auto_tool_choice
                    else "--enable-auto-tool-choice to be set"
                ),
                "tool_choice",
            )
        reader = ToolReader(served.tool_parser, offered, service.registry)
        return ToolUse(reader=reader, parser=served.tool_parser, offered=tools, kinds=kinds, at_most=at_most)
    if KIND not in kinds:
        raise BadRequest(
            "`tool_choice` that demands a call is not supported: no loaded plugin can constrain output to calls."
            ' Use "auto" or "none".',
            "tool_choice",
        )
    for name in CONSTRAINTS:
        if getattr(fields, name) is not None:
            raise BadRequest(f"`tool_choice` that demands a call and `{name}` exclude each other.", name)
    parser = served.tool_parser if served.tool_parser and served.tool_parser.frame else JSON_CALLS
    named = choice.function.name if isinstance(choice, NamedTool) else None
    demanded = [tool for tool in tools if named in (None, tool.function.name)]
    for tool in demanded:
        _check_parameters(tool)
    return ToolUse(
        reader=ToolReader(parser, offered, service.registry, demanded=True),
        parser=parser,
        offered=tools,
        kinds=kinds,
        demanded=demanded,
        at_most=1 if named is not None else at_most,
        named=named is not None,
    )


def _check_parameters(tool: Tool) -> None:
    kind = (tool.function.parameters or NO_PARAMETERS).get("type", "object")
    if kind not in ("object", ["object"]):
        name = tool.function.name
        raise BadRequest(
            f"`tools`: the parameters of {name!r} must be a schema of type object, got {kind!r:.80}.", "tools"
        )


def _checked_choice(fields: ChatRequest) -> str | NamedTool:
    if fields.tools is None:
        if fields.tool_choice not in (None, "none"):
            raise BadRequest("`tool_choice` needs `tools`.", "tool_choice")
        return "none"
    if not fields.tools:
        raise BadRequest("`tools` must not be an empty list; leave it out instead.", "tools")
    names = [tool.function.name for tool in fields.tools]
    for name in names:
        if not TOOL_NAME.fullmatch(name):
            raise BadRequest(
                f"`tools`: {name!r:.80} is no name of a function: it has 1 to 64 letters a-z and A-Z, digits, _ and -.",
                "tools",
            )
    choice = fields.tool_choice or "auto"
    assert not isinstance(choice, AllowedToolsChoice), "see `with_allowed_tools`"
    if isinstance(choice, NamedTool):
        _check_offered(choice.function.name, names)
    return choice


def whole_call(call: CalledTool) -> dict[str, Any]:
    """A call in a whole answer."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_delta(delta: ToolDelta) -> dict[str, Any]:
    """Part of a call in a stream."""
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
