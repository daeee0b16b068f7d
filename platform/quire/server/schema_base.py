"""The base class of the bodies of requests: what null and booleans mean in all of them.

`null` in an optional field is as if the field were absent, as clients generated from a schema send it. A boolean is no
number: Python's are, and pydantic takes them for 0 and 1.
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
    """The core schema of a model in which each number is checked first, but for strict ones, which need no check."""
    if isinstance(schema, list | tuple):
        return type(schema)(_without_booleans(part, model) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")  # a description of the field of that name, where the schema is that of fields
    if isinstance(kind, str) and kind in _NUMBERS:
        return schema if schema.get("strict") else _number(schema)
    if kind == "model" and schema["cls"] is not model:  # it has done the same for itself
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
    """The schema of a field that may be null too; what is said about the field stays outside."""
    told = ("default", "title", "description", "deprecated")
    about: dict[str, Any] = {key: field.pop(key) for key in told if key in field}
    return {"anyOf": [field, {"type": "null"}], **about}


class RequestModel(BaseModel):
    """A body of a request, or a part of one. Every schema of something that a client sends derives from it."""

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
        """The usual one, in which no number can be a boolean."""
        schema: CoreSchema = _without_booleans(handler(source), source)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The usual one, in which optional fields may be null."""
        made = handler(schema)
        whole = handler.resolve_ref_schema(made)
        required = whole.get("required", ())
        for name, field in whole.get("properties", {}).items():
            if name not in required and field.get("default", ...) is not None:
                whole["properties"][name] = _or_null(field)
        return made


@cache
def _with_default(model: type[RequestModel]) -> frozenset[str]:
    """Names on the wire of the fields that have another default than null."""
    return frozenset(
        alias
        for name, field in model.model_fields.items()
        if not field.is_required() and field.default is not None
        for alias in (name, field.alias or name)
    )
