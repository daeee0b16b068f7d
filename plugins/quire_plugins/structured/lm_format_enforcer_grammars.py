"""Structured output with lm-format-enforcer: character parsers over a prefix tree of the vocabulary.

It is written in Python and slow, so `auto` tries it last. Only tokens of complete printable characters are allowed.
What the library ignores is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    BadRequest,
    Context,
    GrammarBackend,
    QuireError,
    StructuredSpec,
    UnsupportedConstraint,
    hookimpl,
)
from quire_plugins.structured.json_schemas import (
    Schema,
    check_installed,
    check_keywords,
    check_simple,
    read,
    schemas,
    texts,
)
from quire_plugins.structured.regexes import portable

if TYPE_CHECKING:
    from lmformatenforcer import CharacterLevelParser, TokenEnforcer, TokenEnforcerTokenizerData
    from torch import Tensor

KEYWORDS = frozenset(
    (
        *("$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "minItems"),
        *("minLength", "pattern", "properties", "required", "type"),
    )
)


class LmFormatEnforcer:
    """lm-format-enforcer for one vocabulary."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._data: TokenEnforcerTokenizerData | None = None

    def needs_process(self, asked: StructuredSpec) -> bool:
        """Returns True, since nothing bounds the library's work. Raises UnsupportedConstraint or BadRequest."""
        check_installed("lmformatenforcer")
        _MADE_OF[asked.kind](asked)
        return True

    def warm_up(self) -> None:
        import_module("lmformatenforcer")

    def compile_in_worker(self, asked: StructuredSpec) -> CharacterLevelParser:
        """Returns the parser of a constraint, pickled by the caller."""
        try:
            return _parser(asked)
        except QuireError:
            raise
        except Exception as error:  # the library raises whatever comes, Exception itself among others
            raise UnsupportedConstraint(f"{type(error).__name__}: {error}"[:300].rstrip(".") + ".") from error

    def load(self, compiled: CharacterLevelParser) -> EnforcerGrammar:
        """Returns a grammar from a parser."""
        if self._data is None:
            self._data = _data(self._context)
        return EnforcerGrammar(compiled, self._data)


def _parser(asked: StructuredSpec) -> CharacterLevelParser:
    from lmformatenforcer import CharacterLevelParserConfig, JsonSchemaParser, RegexParser, StringParser, UnionParser

    if asked.kind == "regex":
        return RegexParser(_pattern(asked))
    if asked.kind == "choice":
        return UnionParser([StringParser(text) for text in texts(asked)])
    schema = _schema(asked)
    return JsonSchemaParser(schema, CharacterLevelParserConfig(max_consecutive_whitespaces=_longest_space(schema)))


def _longest_space(schema: Schema) -> int:
    """Largest number of consecutive spaces; the library has one limit for spaces inside and between texts."""
    return max(1, *map(len, re.findall(" +", json.dumps(schema, separators=(",", ":"))) or [""]))


def _pattern(asked: StructuredSpec) -> str:
    pattern = portable(asked.source)
    codes = [int(code, 16) for code in re.findall(r"\\u\{(\w+)\}", pattern)]
    foreign = any(mark in pattern for mark in ("\\p{", "\\P{", "[^", "(?i:"))
    if foreign or not all(31 < code < 127 for code in codes):
        raise UnsupportedConstraint(
            "it enforces regexes of printable ASCII, without \\d, \\w, \\s and classes of all others."
        )
    return re.sub(r"\\u\{(\w+)\}", r"\\x\1", pattern)


def _schema(asked: StructuredSpec) -> Schema:
    if asked.whitespace_pattern is not None or not asked.any_whitespace:
        raise UnsupportedConstraint("its whitespace is not configurable.")
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    check_simple(schema)
    if not json.dumps(schema, ensure_ascii=False).isascii():
        raise UnsupportedConstraint("it enforces schemas of ASCII only.")
    if any(map(_needs_escape, _constants(schema))):
        raise UnsupportedConstraint(
            "it does not escape quotes, backslashes and control characters in names and values."
        )
    for each in schemas(schema):
        _check(each)
    return schema


def _check(schema: Schema) -> None:
    """Raises UnsupportedConstraint for constraints that the library interprets differently."""
    if "pattern" in schema:
        raise UnsupportedConstraint("it enforces `pattern` and `format` in a dialect of its own.")
    if schema.get("type") == "object" and schema.get("additionalProperties", True) is not False:
        raise UnsupportedConstraint("it enforces objects only with `additionalProperties` false.")
    if not schema.keys() & {"type", "$ref", "anyOf", "enum", "const"}:
        raise UnsupportedConstraint("it enforces only schemas that say a `type`.")
    if not isinstance(schema.get("const", ""), str):
        raise UnsupportedConstraint("it enforces `const` of a text only.")
    if set(schema.get("required", ())) != set(schema.get("properties", ())):
        raise UnsupportedConstraint("it enforces objects only with all `properties` being `required`.")
    if 0 in (schema.get("maxLength"), schema.get("maxItems")):
        raise UnsupportedConstraint("it does not enforce `maxLength` and `maxItems` of 0.")


def _constants(root: Schema) -> Iterator[Any]:
    """Constants in a schema: property names, and values of `enum` and `const`."""
    for schema in schemas(root):
        yield from schema.get("properties", ())
        yield from schema.get("enum", ())
        yield schema.get("const")


def _needs_escape(value: Any) -> bool:
    return isinstance(value, str) and json.dumps(value)[1:-1] != value


_MADE_OF: dict[str, Callable[[StructuredSpec], Any]] = {"regex": _pattern, "choice": texts, "json_schema": _schema}


def _data(context: Context) -> TokenEnforcerTokenizerData:
    """The prefix tree of the vocabulary. The end of text is an id that no token has: Quire has its own."""
    from lmformatenforcer import TokenEnforcerTokenizerData

    tokenizer: Any = context.tokenizer
    size = context.vocab_size or tokenizer.vocab_size

    def decode(ids: Sequence[int]) -> str:
        return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")

    tokens = []
    for i in range(tokenizer.vocab_size):
        try:
            text = tokenizer.token_bytes(i).decode()
        except UnicodeDecodeError:
            continue
        if text.isprintable() and text and i not in tokenizer.special_ids:  # JSON strings have no control characters
            tokens.append((i, text, False))
    return TokenEnforcerTokenizerData(tokens, decode, size, False, size + 1)


class EnforcerGrammar:
    """A parser before the first character."""

    def __init__(self, parser: CharacterLevelParser, data: TokenEnforcerTokenizerData) -> None:
        self._parser, self._data = parser, data
        config = getattr(parser, "config", None)  # which a union of parsers has only once it is given one
        self._spaces = config.max_consecutive_whitespaces if config else 1

    def start(self) -> EnforcerMatcher:
        from lmformatenforcer import TokenEnforcer

        enforcer = TokenEnforcer(self._data, self._parser)  # which gives the parser a configuration of its own
        self._parser.config.max_consecutive_whitespaces = self._spaces
        return EnforcerMatcher(enforcer, self._data.vocab_size - 1)


class EnforcerMatcher:
    """Matcher state of one text: the tokens so far, and the library's state. end: id for the end of text."""

    def __init__(self, enforcer: TokenEnforcer, end: int) -> None:
        self._enforcer, self._end = enforcer, end
        self._ids: list[int] = []

    def _allowed(self) -> list[int]:
        return [i for i in self._enforcer.get_allowed_tokens(self._ids).allowed_tokens if i != self._end]

    @property
    def is_terminated(self) -> bool:
        return not self._allowed() and self.is_accepting

    @property
    def is_accepting(self) -> bool:
        self._allowed()
        return bool(self._enforcer.prefix_states[tuple(self._ids)].parser.can_end())

    def fill(self, mask: Tensor) -> None:
        """Fills the mask. Raises BadRequest if no token of complete characters is allowed."""
        import numpy as np

        allowed = self._allowed()
        if not allowed and not self.is_accepting:
            raise BadRequest("The constraint cannot be followed: no token of whole characters leads on.")
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[allowed] = 1
        words: Any = mask.numpy().view(np.uint32)
        words[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token_id: int) -> bool:
        if token_id not in self._allowed():
            return False
        self._ids.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        del self._ids[len(self._ids) - count :]

    def jump_forward(self) -> tuple[int, ...]:
        """Always empty: one text can be tokenized in several ways."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    kinds = frozenset(_MADE_OF)
    yield GrammarBackend("lm-format-enforcer", kinds, LmFormatEnforcer, priority=10, isolated=True)
