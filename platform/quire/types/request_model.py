"""The base class of request bodies: in all of them, null means absent and a boolean is not a number.

Clients generated from the OpenAPI document send null for optional fields. Pydantic alone would accept booleans as the
numbers 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_NUMBERS: Mapping[str, str] = {"int": "integer", "float": "number"}


def _without_booleans(schema: Any, model: Any) -> Any:
    """The core schema of a model in which numbers refuse booleans; strict numbers do so already."""
    if isinstance(schema, list | tuple):
        return type(schema)(_without_booleans(part, model) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")  # in a schema of fields, this may be the schema of a field called "type"
    if isinstance(kind, str) and kind in _NUMBERS:
        return schema if schema.get("strict") else _number(schema)
    if kind == "model" and schema["cls"] is not model:  # a nested model has its own pass
        return schema
    left = ("metadata", "serialization", "cls", "default")
    return {key: part if key in left else _without_booleans(part, model) for key, part in schema.items()}


def _number(schema: Any) -> CoreSchema:
    error_type, name = f"{schema['type']}_type", _NUMBERS[schema["type"]]

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError(error_type, f"Input should be a valid {name}")  # type: ignore[arg-type]
        return value

    return core_schema.no_info_before_validator_function(check, schema)


def _or_null(field: JsonSchemaValue) -> JsonSchemaValue:
    """The JSON schema of a field that may also be null, with title and default outside of `anyOf`."""
    shown = ("default", "title", "description", "deprecated")
    about: dict[str, Any] = {key: field.pop(key) for key in shown if key in field}
    return {"anyOf": [field, {"type": "null"}], **about}


class RequestModel(BaseModel):
    """A request body or a part of one. All schemas of what clients send derive from it."""

    model_config = ConfigDict(protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        names = _with_default(cls)
        return {name: given for name, given in value.items() if given is not None or name not in names}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The usual core schema, in which numbers refuse booleans."""
        schema: CoreSchema = _without_booleans(handler(source), source)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The usual JSON schema, in which optional fields may be null."""
        json_schema = handler(schema)
        resolved = handler.resolve_ref_schema(json_schema)
        required = resolved.get("required", ())
        for name, field in resolved.get("properties", {}).items():
            if name not in required and field.get("default", ...) is not None:
                resolved["properties"][name] = _or_null(field)
        return json_schema


@cache
def _with_default(model: type[RequestModel]) -> frozenset[str]:
    """Names and aliases of the optional fields whose default is not null."""
    return frozenset(
        alias
        for name, field in model.model_fields.items()
        if not field.is_required() and field.default is not None
        for alias in (name, field.alias or name)
    )


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself; the document gets the schema it refers to elsewhere."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
