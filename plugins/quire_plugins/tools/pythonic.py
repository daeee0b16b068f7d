"""Tool calls as a Python list: Llama 3.2, Llama 4, ToolACE and others.

[f(a=1, b="x"), g()]
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolParser

LLAMA4_START, LLAMA4_END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w-][\w.-]*")
_STRING = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_NAMED = re.compile(rf"{_STRING}|(?<![\w.-])([\w-][\w.-]*)(?=\s*(?:\(|=(?!=)))", re.DOTALL)
"""A string, or the name of a function or an argument."""
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
MAX_NAME = 256


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses all calls of the list. Raises ValueError for any other text."""
    del tools
    odd: dict[str, str] = {}
    text = text.strip().removeprefix(LLAMA4_START).removesuffix(LLAMA4_END).strip()
    text = _NAMED.sub(lambda found: _placeholder(found, odd), text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about backslashes in a model's strings
            body = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError) as error:
        raise ValueError("no list of calls") from error
    if not isinstance(body, ast.List) or not body.elts:
        raise ValueError("no list of calls")
    return [_call(node, odd) for node in body.elts]


def _placeholder(found: re.Match[str], odd: dict[str, str]) -> str:
    """A placeholder for a name that is not valid in Python, recorded in `odd`."""
    name = found[1]
    if name is None or all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
        return found[0]
    word = f"_odd_{len(odd)}_"
    odd[word] = name
    return word


def _call(node: ast.expr, odd: Mapping[str, str]) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call has arguments by name only")
    given = [(argument.arg, argument.value) for argument in node.keywords if argument.arg is not None]
    arguments = {odd.get(name, name): _value(value) for name, value in given}
    if len(arguments) != len(node.keywords):
        raise ValueError("an argument without a name, or with one twice")
    name = ast.unparse(_named(node.func))
    return ToolCall(odd.get(name, name), json.dumps(arguments, ensure_ascii=False))


def _named(node: ast.expr) -> ast.expr:
    """A name, which may have dots."""
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise ValueError("a call names a function")
    return node


def _value(node: ast.expr) -> Any:
    """A JSON value in Python's or JSON's spelling."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
    raise ValueError("an argument is no plain value")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key is a string")


def opens(text: str) -> bool | None:
    """Whether the answer begins with a bracket, a name and a parenthesis."""
    text = text.lstrip()
    if text[:1] not in ("", "["):
        return False
    rest = text[1:].lstrip()
    name = _NAME.match(rest)
    if not rest or (name is not None and name.end() == len(rest) <= MAX_NAME):
        return None
    return name is not None and rest[name.end()] == "(" if len(rest) > (name.end() if name else 0) else False


def parsers() -> Iterable[ToolParser]:
    """Without delimiters, and with the optional special tokens of Llama 4."""
    yield ToolParser("pythonic", "", "", parse, _is_pythonic, starts_call=opens)
    yield ToolParser(
        "llama4_pythonic",
        LLAMA4_START,
        LLAMA4_END,
        parse,
        lambda template: "<|header_start|>" in template and "func_name1(" in template,
        starts_call=opens,
    )


def _is_pythonic(template: str) -> bool:
    return "func_name1(" in template and "<|header_start|>" not in template
