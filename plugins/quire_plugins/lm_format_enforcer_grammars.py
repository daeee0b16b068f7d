"""Structured output by lm-format-enforcer: parsers that go character by character over a tree of the vocabulary.

It is written in Python, so that its masks take their time: it is asked last. Only tokens of whole and
printable characters are offered. What the library passes over is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire import GrammarBackend, hookimpl
from quire.errors import BadRequest, CannotConstrain, QuireError
from quire.records import Context
from quire.structured import Structured
from quire_plugins.json_schemas import Schema, check_installed, check_keywords, check_simple, read, schemas, texts
from quire_plugins.regexes import portable

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

    def check(self, asked: Structured) -> None:
        """See `quire.records.CompilesElsewhere`."""
        check_installed("lmformatenforcer")
        _MADE_OF[asked.kind](asked)

    def warm_up(self) -> None:
        """See `quire.records.CompilesElsewhere`."""
        import_module("lmformatenforcer")

    def compile(self, asked: Structured) -> CharacterLevelParser:
        """The parser of a constraint."""
        try:
            return _parser(asked)
        except QuireError:
            raise
        except Exception as error:  # the library raises whatever comes, Exception itself among others
            raise CannotConstrain(f"{type(error).__name__}: {error}"[:300].rstrip(".") + ".") from error

    def restore(self, compiled: CharacterLevelParser) -> EnforcerGrammar:
        """A grammar of a parser."""
        if self._data is None:
            self._data = _data(self._context)
        return EnforcerGrammar(compiled, self._data)


def _parser(asked: Structured) -> CharacterLevelParser:
    from lmformatenforcer import CharacterLevelParserConfig, JsonSchemaParser, RegexParser, StringParser, UnionParser

    if asked.kind == "regex":
        return RegexParser(_pattern(asked))
    if asked.kind == "choice":
        return UnionParser([StringParser(text) for text in texts(asked)])
    schema = _schema(asked)
    return JsonSchemaParser(schema, CharacterLevelParserConfig(max_consecutive_whitespaces=_longest_space(schema)))


def _longest_space(schema: Schema) -> int:
    """Spaces that may follow one another, for which the library has one bound inside of texts and between them."""
    return max(1, *map(len, re.findall(" +", json.dumps(schema, separators=(",", ":"))) or [""]))


def _pattern(asked: Structured) -> str:
    pattern = portable(asked.source)
    codes = [int(code, 16) for code in re.findall(r"\\u\{(\w+)\}", pattern)]
    foreign = any(mark in pattern for mark in ("\\p{", "\\P{", "[^", "(?i:"))
    if foreign or not all(31 < code < 127 for code in codes):
        raise CannotConstrain(
            "it enforces regexes of printable ASCII, without \\d, \\w, \\s and classes of all others."
        )
    return re.sub(r"\\u\{(\w+)\}", r"\\x\1", pattern)


def _schema(asked: Structured) -> Schema:
    if asked.whitespace_pattern is not None or not asked.any_whitespace:
        raise CannotConstrain("it cannot be told what whitespace to write.")
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    check_simple(schema)
    if not json.dumps(schema, ensure_ascii=False).isascii():
        raise CannotConstrain("it enforces schemas of ASCII only.")
    if any(map(_needs_escape, _constants(schema))):
        raise CannotConstrain("it does not escape quotes, backslashes and control characters in names and values.")
    for each in schemas(schema):
        _check(each)
    return schema


def _check(schema: Schema) -> None:
    """Raise CannotConstrain for what the library does in its own way."""
    if "pattern" in schema:
        raise CannotConstrain("it enforces `pattern` and `format` in a dialect of its own.")
    if schema.get("type") == "object" and schema.get("additionalProperties", True) is not False:
        raise CannotConstrain("it enforces objects only with `additionalProperties` false.")
    if not schema.keys() & {"type", "$ref", "anyOf", "enum", "const"}:
        raise CannotConstrain("it enforces only schemas that say a `type`.")
    if not isinstance(schema.get("const", ""), str):
        raise CannotConstrain("it enforces `const` of a text only.")
    if set(schema.get("required", ())) != set(schema.get("properties", ())):
        raise CannotConstrain("it enforces objects only with all `properties` being `required`.")
    if 0 in (schema.get("maxLength"), schema.get("maxItems")):
        raise CannotConstrain("it does not enforce `maxLength` and `maxItems` of 0.")


def _constants(root: Schema) -> Iterator[Any]:
    """What a schema names: properties, and values of `enum` and `const`."""
    for schema in schemas(root):
        yield from schema.get("properties", ())
        yield from schema.get("enum", ())
        yield schema.get("const")


def _needs_escape(value: Any) -> bool:
    return isinstance(value, str) and json.dumps(value)[1:-1] != value


_MADE_OF: dict[str, Callable[[Structured], Any]] = {"regex": _pattern, "choice": texts, "json_schema": _schema}


def _data(context: Context) -> TokenEnforcerTokenizerData:
    """The tree of the vocabulary. The end of text is an id that no token has: the host has ends of its own."""
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
        """A matcher at the beginning."""
        from lmformatenforcer import TokenEnforcer

        enforcer = TokenEnforcer(self._data, self._parser)  # which gives the parser a configuration of its own
        self._parser.config.max_consecutive_whitespaces = self._spaces
        return EnforcerMatcher(enforcer, self._data.vocab_size - 1)


class EnforcerMatcher:
    """Where one text stands: the tokens so far, and what the library makes of them. end: stands for the end of text."""

    def __init__(self, enforcer: TokenEnforcer, end: int) -> None:
        self._enforcer, self._end = enforcer, end
        self._ids: list[int] = []

    def _allowed(self) -> list[int]:
        return [i for i in self._enforcer.get_allowed_tokens(self._ids).allowed_tokens if i != self._end]

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return not self._allowed() and self.complete

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        self._allowed()
        return bool(self._enforcer.prefix_states[tuple(self._ids)].parser.can_end())

    def fill(self, mask: Tensor) -> None:
        """See `quire.records.Matcher`. Raises BadRequest where no token of whole characters leads on."""
        import numpy as np

        allowed = self._allowed()
        if not allowed and not self.complete:
            raise BadRequest("The constraint cannot be followed: no token of whole characters leads on.")
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[allowed] = 1
        words: Any = mask.numpy().view(np.uint32)
        words[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token_id: int) -> bool:
        """Advance by one token."""
        if token_id not in self._allowed():
            return False
        self._ids.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        del self._ids[len(self._ids) - count :]

    def forced(self) -> tuple[int, ...]:
        """None: what is forced is a text, which many tokens can write."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    """Offer `lm-format-enforcer`."""
    kinds = frozenset(_MADE_OF)
    yield GrammarBackend("lm-format-enforcer", kinds, LmFormatEnforcer, priority=10, isolated=True)
