"""Turns request fields into the structured output of an answer, in the spelling of OpenAI, vLLM, SGLang or llama.cpp.

Grammar back ends of plugins determine the kinds of constraints and read their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from quire.errors import BadRequest
from quire.params.structured import StructuredOutputsParams, StructuredSpec
from quire.server.schemas.sampling import ResponseFormat, SamplingFields, StructuredOutputs

GUIDED_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Older vLLM fields, and the field of `structured_outputs` that each stands for."""

OTHER_SERVERS_FIELDS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "grammar": "grammar"}
"""Fields of SGLang (the first three) and llama.cpp (`json_schema`, `grammar`), in the same form."""

OLDER_FIELDS = ("guided_decoding", *GUIDED_FIELDS)
"""Ignored beside `structured_outputs`: clients send both for older and newer servers."""

CONSTRAINT_FIELDS = ("structured_outputs", *OLDER_FIELDS, *OTHER_SERVERS_FIELDS)
"""Fields that constrain an answer, without `response_format`."""


def structured_spec(
    fields: SamplingFields, kinds: Collection[str], advice: Callable[[str], str] = lambda _: ""
) -> StructuredSpec | None:
    """The constraint of a request, None without one. Raises `BadRequest` for two different ones or an unknown kind.

    kinds: the kinds that loaded plugins offer. advice: how to enable a kind that is missing.
    """
    found: StructuredSpec | None = None
    for name, params in _requested(fields):
        spec = params.structured(param=name)
        if spec.kind not in kinds:
            offered = ", ".join(sorted(kinds)) or "none"
            raise BadRequest(
                f"`{name}`: no loaded plugin can constrain output by {spec.kind}; available kinds: {offered}. "
                f"{advice(spec.kind)}".rstrip(),
                name,
            )
        if found is None:
            found = spec
        elif replace(spec, backend=found.backend) != found:
            raise BadRequest(f"`{found.param}` and `{name}` exclude each other.", name)
    return found


def _requested(fields: SamplingFields) -> Iterator[tuple[str, StructuredOutputsParams]]:
    """Every constraint of the request, with the field that it comes from."""
    params = _from_response_format(fields.response_format)
    if params is not None:
        yield "response_format", params
    if fields.structured_outputs is not None:
        yield "structured_outputs", _params("structured_outputs", _values(fields.structured_outputs))
    else:
        yield from _from_older_fields(fields)
    for name, kind in OTHER_SERVERS_FIELDS.items():
        value = getattr(fields, name)
        if value is not None:
            yield name, _params(name, {kind: value})


def _from_older_fields(fields: SamplingFields) -> Iterator[tuple[str, StructuredOutputsParams]]:
    if fields.guided_decoding is not None:
        yield "guided_decoding", _params("guided_decoding", _values(fields.guided_decoding))
    settings: dict[str, Any] = {
        "backend": fields.guided_decoding_backend,
        "whitespace_pattern": fields.guided_whitespace_pattern,
    }
    for name, kind in GUIDED_FIELDS.items():
        value = getattr(fields, name)
        if value is not None:
            yield name, _params(name, {kind: value, **settings})


def _params(name: str, values: dict[str, Any]) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams(**values)
    except BadRequest as error:
        raise BadRequest(error.message, name) from error


def _values(given: StructuredOutputs) -> dict[str, Any]:
    values = {name: getattr(given, name) for name in type(given).model_fields}
    values["json"] = values.pop("json_")
    return values


def _from_response_format(form: ResponseFormat | None) -> StructuredOutputsParams | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    if form.type == "structural_tag":
        return StructuredOutputsParams(structural_tag=form.model_dump(exclude_unset=True, by_alias=True))
    if form.json_schema is None or form.json_schema.json_schema is None:
        raise BadRequest("`response_format` of type json_schema needs `json_schema.schema`.", "response_format")
    return StructuredOutputsParams(json=form.json_schema.json_schema)
