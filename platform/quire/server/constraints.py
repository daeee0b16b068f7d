"""From request fields to the constraint on the answer: OpenAI's spelling, vLLM's, and vLLM's older one.

Which kinds there are, back ends say; what a source means is their affair too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from quire.errors import BadRequest
from quire.server.schema_sampling import ResponseFormat, SamplingFields, StructuredOutputs
from quire.structured import Structured, StructuredOutputsParams

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Older names of what `structured_outputs` has."""


def constraint(
    fields: SamplingFields, kinds: Collection[str], advice: Callable[[str], str] = lambda _: ""
) -> Structured | None:
    """The constraint that a request asks for. Raises BadRequest: two of them, or one of a kind that no plugin offers.

    advice: for a kind that is missing, a sentence about what to do.
    """
    asked = dict(_asked(fields))
    if len(asked) > 1:
        first, *_, last = asked
        raise BadRequest(f"`{first}` and `{last}` exclude each other.", last)
    for name, params in asked.items():
        found = params.structured(param=name)
        if found.kind not in kinds:
            offered = ", ".join(sorted(kinds)) or "none"
            raise BadRequest(
                f"`{name}`: no loaded plugin can constrain output by {found.kind}; available kinds: {offered}. "
                f"{advice(found.kind)}".rstrip(),
                name,
            )
        return found
    return None


def _asked(fields: SamplingFields) -> Iterator[tuple[str, StructuredOutputsParams]]:
    """Every constraint asked for, by the field that does."""
    form = _of_format(fields.response_format)
    if form is not None:
        yield "response_format", form
    for name in ("structured_outputs", "guided_decoding"):
        given: StructuredOutputs | None = getattr(fields, name)
        if given is not None:
            yield name, _params(name, _named(given))
    settings: dict[str, Any] = {
        "backend": fields.guided_decoding_backend,
        "whitespace_pattern": fields.guided_whitespace_pattern,
    }
    for name, kind in GUIDED.items():
        value = getattr(fields, name)
        if value is not None:
            yield name, _params(name, {kind: value, **settings})


def _params(name: str, values: dict[str, Any]) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams(**values)
    except BadRequest as error:
        raise BadRequest(error.message, name) from error


def _named(given: StructuredOutputs) -> dict[str, Any]:
    values = {name: getattr(given, name) for name in type(given).model_fields}
    values["json"] = values.pop("json_")
    return values


def _of_format(form: ResponseFormat | None) -> StructuredOutputsParams | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    if form.type == "structural_tag":
        return StructuredOutputsParams(structural_tag=form.model_dump(exclude_unset=True, by_alias=True))
    if form.json_schema is None or form.json_schema.json_schema is None:
        raise BadRequest("`response_format` of type json_schema needs `json_schema.schema`.", "response_format")
    return StructuredOutputsParams(json=form.json_schema.json_schema)
