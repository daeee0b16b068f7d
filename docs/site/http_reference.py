"""A hook of mkdocs: the page of the HTTP API, with every route and the fields of its body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from mkdocs.structure.files import File, Files

from quire.hooks.registry import load
from quire.server.app import build_app
from quire.settings.server_config import ServerConfig

PAGE = "http_api.md"
HEADER = """# HTTP API

Every route of the server with the bundled plugins, and the fields of request bodies. A running server describes itself
at `/openapi.json`, and shows the description at `/docs`. Optional fields may be null, which is the same as leaving them
out.
"""
SHOWN_VALUES = 8


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page(openapi())))
    return files


def openapi() -> dict[str, Any]:
    """The document of a server with the bundled plugins, without models."""
    sleepers = SimpleNamespace(sleep_of=lambda name: None)
    client: Any = SimpleNamespace(adapters=SimpleNamespace(), sleepers=sleepers, on_model_lost=lambda on_lost: None)
    return build_app(client, ServerConfig(), load(), []).openapi()


def page(document: Mapping[str, Any]) -> str:
    """The page in Markdown: a section for each group of routes, then one for each body."""
    schemas = document["components"]["schemas"]
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            group = (operation.get("tags") or ["Other routes"])[0]
            groups.setdefault(group, []).append((method.upper(), path, operation))
    bodies = dict.fromkeys(name for routes in groups.values() for *_, op in routes if (name := _body(op)))
    lines = [HEADER]
    for group, routes in groups.items():
        lines += [f"## {group}", "", "| route | body | |", "|---|---|---|"]
        for method, path, operation in routes:
            name = _body(operation)
            body = f"[{name}](#{name.lower()})" if name else ""
            lines.append(f"| `{method} {path}` | {body} | {operation.get('summary', '')} |")
        lines.append("")
    for name in bodies:
        lines += [f"## {name}", "", "| field | type | default |", "|---|---|---|", *_fields(schemas[name], schemas), ""]
    return "\n".join(lines)


def _body(operation: Mapping[str, Any]) -> str:
    """The name of the schema of an operation's JSON body, empty if it has none."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: str = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    return schema.rpartition("/")[2]


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        shown = "required" if name in required else "" if default is None else f"`{default}`"
        yield f"| `{name}` | {_type(field, schemas)} | {shown} |"


def _type(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """The type of a value in words; objects that are no body of their own are shown by the names of their fields."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return ", ".join(f"`{key}`" for key in schemas[name].get("properties", {})) or "object"
    options = [one for key in ("anyOf", "oneOf") for one in field.get(key, ()) if one.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(_type(one, schemas) for one in options))
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        more = " …" if len(values) > SHOWN_VALUES else ""
        return ", ".join(f"`{value}`" for value in values[:SHOWN_VALUES]) + more
    if field.get("type") == "array":
        items = _type(field.get("items", {}), schemas)
        return f"list of {items}"
    return f"{field.get('type', 'any')}{_range(field)}"


def _range(field: Mapping[str, Any]) -> str:
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum", field.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    if high is None:
        return f" ≥ {low}" if "minimum" in field else f" > {low}"
    return f" ≤ {high}" if low is None else f" {low} … {high}"
