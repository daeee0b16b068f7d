"""The base class of request bodies: null means absent, a boolean is not a number, and one wrong item ends a list.

Clients generated from the OpenAPI document send null for optional fields. Pydantic alone would accept booleans as the
numbers 0 and 1, and collect an error for each of 500 000 items.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Identifier = Annotated[str, Field(max_length=512)]
"""A name or an id that a client chooses or returns. A str without a bound may have as many characters as a body."""

_NUMBERS: Mapping[str, str] = {"int": "integer", "float": "number"}


_COLLECTIONS = ("list", "dict")


def _stricter(schema: Any, model: Any) -> Any:
    """The core schema of a model in which numbers refuse booleans and the first wrong item ends a list or object."""
    if isinstance(schema, list | tuple):
        return type(schema)(_stricter(part, model) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")  # in a schema of fields, this may be the schema of a field called "type"
    if isinstance(kind, str) and kind in _NUMBERS:
        return schema if schema.get("strict") else _number(schema)  # strict numbers refuse booleans already
    if kind == "model" and schema["cls"] is not model:  # a nested model has its own pass
        return schema
    left = ("metadata", "serialization", "cls", "default") if isinstance(kind, str) else ()
    stricter = {key: part if key in left else _stricter(part, model) for key, part in schema.items()}
    return {**stricter, "fail_fast": True} if kind in _COLLECTIONS else stricter


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
        """The usual core schema, made stricter."""
        schema: CoreSchema = _stricter(handler(source), source)
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
