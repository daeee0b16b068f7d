"""The tools of a chat request: checks, constraints that make the model call them, and the wire shape of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import BadRequest
from quire.params.structured import StructuredSpec, as_json
from quire.records import ToolParser
from quire.server.openai.chat_reasoning import ReasoningBounds
from quire.server.schemas.requests import AllowedToolsChoice, ChatRequest, NamedTool, Tool
from quire.server.service.models import ServedModel
from quire.server.service.service import Service
from quire.server.service.structured_fields import CONSTRAINT_FIELDS
from quire.text.parsing.default_tool_format import JSON_CALLS
from quire.text.parsing.tool_calls import FinishedCall, ToolCallExtractor, ToolDelta

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS_FIELD = "tools"
CALLS_KIND = "calls"
"""The kind of constraint that makes an answer consist of tool calls."""

STRICT_KIND = "structural_tag"
"""The kind of constraint that applies inside tool calls, if the model makes any."""


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """How the answers of one request call tools.

    offered: all tools of the request. required: the answer must consist of calls of these; empty: calls are optional.
    kinds: the available kinds of constraints. max_calls: per answer, None: any number. named: the request names the
    tool; then `finish_reason` is not "tool_calls".
    """

    extractor: ToolCallExtractor
    parser: ToolParser
    offered: Sequence[Tool]
    kinds: Collection[str]
    required: Sequence[Tool] = ()
    max_calls: int | None = None
    named: bool = False

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """The finish reason of an answer with `num_calls` calls, for which the engine gave `reason`."""
        return "tool_calls" if num_calls and reason == "stop" and not self.named else reason

    def constraint(
        self, template: str, response_format: StructuredSpec | None, bounds: ReasoningBounds
    ) -> StructuredSpec | None:
        """The constraint of an answer, None if it is free. template: the chat template."""
        if self.required:
            return self.required_constraint(template, bounds.calls_start, bounds.optional_delimiters)
        spec = self.format_constraint(template, response_format, bounds.constraint_start)
        if spec is None and not bounds.optional:
            spec = self.strict_constraint(template, bounds.constraint_start)
        return spec

    def format_constraint(
        self, template: str, response_format: StructuredSpec | None, after: str | None
    ) -> StructuredSpec | None:
        """Makes an answer follow the response format or be one tool call. after: the text before either."""
        if response_format is None:
            return None
        frame, schema = self.parser.call_format, _schema_of(response_format)
        if schema is None or frame is None or self.parser.channels is not None or CALLS_KIND not in self.kinds:
            return replace(response_format, after=after)
        tags = [self._tag(tool, template, alone=True) for tool in self.offered]
        param = response_format.param
        tags.append({"begin": "", "schema": schema, "end": "", "owner": f"`{param}`", "param": param})
        return _constraint_for(response_format, CALLS_KIND, {"tags": tags, "at_least": 1, "at_most": 1}, after)

    def required_constraint(
        self, template: str, after: str | None = None, optional_delimiters: tuple[str, str] | None = None
    ) -> StructuredSpec:
        """Makes an answer consist of required calls. after: the text before them, None: nothing.

        optional_delimiters: the texts around reasoning that may come before the calls.
        """
        frame = self.parser.call_format
        assert frame is not None
        tags = [self._tag(tool, template, self.max_calls == 1) for tool in self.required]
        call = frame(self.required[0].function.name, template)
        source: dict[str, Any] = {"tags": tags, "at_least": 1, "at_most": self.max_calls}
        if self.max_calls != 1:
            source |= {"separator": call.separator, "first": call.first, "last": call.last}
        if optional_delimiters is not None:
            source["lead"] = {"begin": optional_delimiters[0], "end": optional_delimiters[1]}
        return _constraint_for(None, CALLS_KIND, source, after)

    def strict_constraint(self, template: str, after: str | None = None) -> StructuredSpec | None:
        """Makes calls, if there are any, follow the schemas of strict tools; None if no tool is strict.

        Needs a format whose calls are JSON after a start delimiter, which triggers the constraint.
        """
        frame, start = self.parser.call_format, self.parser.start
        if self.required or frame is None or not start or STRICT_KIND not in self.kinds:
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
        return _constraint_for(None, STRICT_KIND, {"structures": tags, "triggers": [start]}, after)

    def _tag(self, tool: Tool, template: str, alone: bool) -> dict[str, Any]:
        """The constraint of one call of a tool. alone: with the texts before and after all calls."""
        assert self.parser.call_format is not None
        frame = self.parser.call_format(tool.function.name, template)
        first, last = (frame.first, frame.last) if alone else ("", "")
        number = next(i for i, offered in enumerate(self.offered) if offered is tool)
        return {
            "begin": first + frame.before,
            "schema": tool.function.parameters or NO_PARAMETERS,
            "end": frame.after + last,
            "separators": [frame.item_separator, frame.key_separator],
            "owner": f"the parameters of the tool {tool.function.name!r}",
            "param": f"tools[{number}].function.parameters",
        }


def _constraint_for(
    response_format: StructuredSpec | None, kind: str, source: Mapping[str, Any], after: str | None
) -> StructuredSpec:
    """A constraint with this source, and with the other settings of `response_format`. Raises `BadRequest`."""
    try:
        text = as_json(source, TOOLS_FIELD)
        if response_format is not None:
            return replace(response_format, kind=kind, source=text, after=after, param=TOOLS_FIELD)
        return StructuredSpec(kind=kind, source=text, after=after, param=TOOLS_FIELD)
    except BadRequest as error:
        raise BadRequest(f"`tools`: {error.message}", "tools") from error


def _schema_of(spec: StructuredSpec) -> Any:
    """The JSON schema of a constraint, None if it is of another kind."""
    if spec.kind not in ("json_schema", "json_object"):
        return None
    try:
        return json.loads(spec.source) if spec.kind == "json_schema" else {"type": "object"}
    except (ValueError, RecursionError):  # the grammar back end will refuse it and say why
        return None


def resolve_tools(service: Service, served: ServedModel, fields: ChatRequest) -> tuple[ChatRequest, ToolUse | None]:
    """The request with only the tools that `tool_choice` allows, and how the answer uses them (None: not at all).

    Raises `BadRequest`.
    """
    fields = _with_allowed_tools(fields)
    return fields, _tool_use(service, served, fields)


def _with_allowed_tools(fields: ChatRequest) -> ChatRequest:
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


def _tool_use(service: Service, served: ServedModel, fields: ChatRequest) -> ToolUse | None:
    choice = _checked_choice(fields)
    tools, kinds = fields.tools or (), service.request_fields.grammar_kinds
    offered = [tool.model_dump(exclude_unset=True) for tool in tools]
    max_calls = 1 if fields.parallel_tool_calls is False else None
    if choice == "none":
        return None
    if choice == "auto":
        if not service.config.enable_auto_tool_choice or served.tool_parser is None:
            raise BadRequest(
                '"auto" tool choice requires '
                + (
                    "--tool-call-parser: the chat template does not show the format of the model's calls"
                    if service.config.enable_auto_tool_choice
                    else "--enable-auto-tool-choice to be set"
                ),
                "tool_choice",
            )
        extractor = ToolCallExtractor(served.tool_parser, offered, service.registry)
        return ToolUse(extractor=extractor, parser=served.tool_parser, offered=tools, kinds=kinds, max_calls=max_calls)
    if CALLS_KIND not in kinds:
        raise BadRequest(
            "`tool_choice` that demands a call is not supported: no loaded plugin can constrain output to calls."
            ' Use "auto" or "none".',
            "tool_choice",
        )
    for name in CONSTRAINT_FIELDS:
        if getattr(fields, name) is not None:
            raise BadRequest(f"`tool_choice` that demands a call and `{name}` exclude each other.", name)
    parser = served.tool_parser if served.tool_parser and served.tool_parser.call_format else JSON_CALLS
    named = choice.function.name if isinstance(choice, NamedTool) else None
    required = [tool for tool in tools if named in (None, tool.function.name)]
    for tool in required:
        _check_parameters(tool)
    return ToolUse(
        extractor=ToolCallExtractor(parser, offered, service.registry, calls_required=True),
        parser=parser,
        offered=tools,
        kinds=kinds,
        required=required,
        max_calls=1 if named is not None else max_calls,
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
                f"`tools`: {name!r:.80} is not a function name: use 1 to 128 letters a-z and A-Z, digits, _ and -.",
                "tools",
            )
    choice = fields.tool_choice or "auto"
    assert not isinstance(choice, AllowedToolsChoice), "replaced by `_with_allowed_tools`"
    if isinstance(choice, NamedTool):
        _check_offered(choice.function.name, names)
    return choice


def full_call(call: FinishedCall) -> dict[str, Any]:
    """A tool call in an answer that is not streamed."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_delta(delta: ToolDelta) -> dict[str, Any]:
    """The next part of a tool call in a stream."""
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
