"""Structured output with outlines_core: a regex becomes an index over the whole vocabulary, from which masks are read.

The size of an index has no limit, so it is built in a child process. JSON schemas become regexes; what a regex cannot
express, such as a range of numbers, is rejected.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quire.plugin import Context, GrammarBackend, StructuredSpec, UnsupportedConstraint, hookimpl
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
    from outlines_core import Index, Vocabulary
    from torch import Tensor

KEYWORDS = frozenset(
    (
        *("$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "minItems"),
        *("minLength", "pattern", "prefixItems", "properties", "required", "type"),
    )
)
MASKS_KEPT = 1024
"""Masks that a grammar caches."""
MAX_REGEX = 100_000
"""Maximum number of characters of the regex of a schema."""
WHITESPACE = r"(?: |\n {0,12})?"
"""Whitespace between two tokens of JSON: less than elsewhere, because the index has a state for each space."""


class Outlines:
    """outlines_core for one vocabulary."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._vocabulary: Vocabulary | None = None

    def needs_process(self, asked: StructuredSpec) -> bool:
        """Returns True, since nothing bounds the library's work. Raises UnsupportedConstraint or BadRequest."""
        check_installed("outlines_core")
        _regex(asked) if asked.kind != "json_schema" else _schema(asked)
        return True

    def warm_up(self) -> None:
        """Imports the library and builds the vocabulary."""
        self._known()

    def compile_in_worker(self, asked: StructuredSpec) -> Index:
        """Returns the index of a constraint. Raises BadRequest for what no regex expresses."""
        from outlines_core import Index

        try:
            return Index(_regex(asked), self._known())
        except ValueError as error:
            raise UnsupportedConstraint(" ".join(str(error).split())[:300].rstrip(".") + ".") from error

    def _known(self) -> Vocabulary:
        """The vocabulary, built on first use in the compiling process."""
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._context)
        return self._vocabulary

    def load(self, compiled: Index) -> OutlinesGrammar:
        """Returns a grammar from an index."""
        return OutlinesGrammar(compiled, _end(self._context))


def _vocabulary(context: Context) -> Vocabulary:
    from outlines_core import Vocabulary

    tokenizer: Any = context.tokenizer
    ids: dict[bytes, list[int]] = {}
    for i in range(tokenizer.vocab_size):
        text = tokenizer.token_bytes(i)
        if text and i not in tokenizer.special_ids:
            ids.setdefault(text, []).append(i)
    return Vocabulary(_end(context), ids)


def _end(context: Context) -> int:
    """The id for the end of text: one that no token has, because Quire has its own."""
    return context.vocab_size or int(context.tokenizer.vocab_size)


def _regex(asked: StructuredSpec) -> str:
    """A constraint as a regex of the whole answer."""
    if asked.kind == "regex":
        return portable(asked.source)
    if asked.kind == "choice":
        return "|".join(f"(?:{portable(re.escape(text))})" for text in texts(asked))
    from outlines_core.json_schema import build_regex_from_schema

    space = asked.whitespace_pattern
    space = (WHITESPACE if asked.any_whitespace else "") if space is None else portable(space)
    try:
        regex = build_regex_from_schema(json.dumps(_schema(asked)), space)
    except (ValueError, TypeError) as error:
        raise UnsupportedConstraint(" ".join(str(error).split())[:300].rstrip(".") + ".") from error
    if len(regex) > MAX_REGEX:
        raise UnsupportedConstraint(f"the schema becomes a regex of {len(regex)} characters; {MAX_REGEX} are the most.")
    return regex


def _schema(asked: StructuredSpec) -> Schema:
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    check_simple(schema)
    for each in schemas(schema):
        _settle(each)
    return schema


def _settle(schema: Schema) -> None:
    """Rejects what the library interprets differently, and writes patterns in their JSON form."""
    kind = schema.get("type")
    if kind == "object" and not schema.get("properties"):
        raise UnsupportedConstraint("it enforces objects only with `properties`.")
    if kind == "array" and not ("items" in schema or "prefixItems" in schema):
        raise UnsupportedConstraint("it enforces arrays only with `items` or `prefixItems`.")
    if not kind and not schema.keys() & {"$ref", "anyOf", "enum", "const"}:
        raise UnsupportedConstraint("it enforces only schemas that say a `type`.")
    if "pattern" in schema:
        if schema.keys() & {"minLength", "maxLength"}:
            raise UnsupportedConstraint("it does not enforce lengths beside `pattern`.")
        schema["pattern"] = f"^{portable(schema['pattern'], in_json=True)}$"
    if "prefixItems" in schema and (schema.get("items") is not False or "maxItems" in schema):
        raise UnsupportedConstraint("it enforces `prefixItems` only with `items` false.")
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not all(_is_plain(value) for value in values if isinstance(value, dict | list)):
        raise UnsupportedConstraint("it does not escape what is inside of arrays and objects in `enum` and `const`.")
    if "properties" in schema:
        schema["properties"] = {_escaped(name): value for name, value in schema["properties"].items()}
        schema["required"] = [_escaped(name) for name in schema.get("required", ())]


def _escaped(name: str) -> str:
    """A property name in JSON; the library escapes values only."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _is_plain(value: Any) -> bool:
    """Whether a value reads the same as JSON, as a regex and as text."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return re.fullmatch(r"[\w -]*", value) is not None if isinstance(value, str) else not isinstance(value, float)


class OutlinesGrammar:
    """An index, and a cache of the masks of its states. end: id for the end of text."""

    def __init__(self, index: Index, end: int) -> None:
        self._index, self._end = index, end
        self._read: OrderedDict[int, tuple[Any, bool]] = OrderedDict()
        self._index_bytes = len(pickle.dumps(index))

    @property
    def num_bytes(self) -> int:
        """Size of the index (its serialized size approximates that in memory) and of the cached masks."""
        return self._index_bytes + len(self._read) * (self._end // 8)

    def start(self) -> OutlinesMatcher:
        return OutlinesMatcher(self, self._index)

    def following(self, state: int) -> tuple[Any, bool]:
        """Returns the mask of a state, uint32 [ceil(vocab / 32)], and whether it allows anything."""
        found = self._read.get(state)
        if found is None:
            import numpy as np

            allowed = [i for i in self._index.get_allowed_tokens(state) or () if i != self._end]
            bits = np.zeros(-(-self._end // 32) * 32, np.uint8)
            bits[allowed] = 1
            found = self._read[state] = np.packbits(bits, bitorder="little").view(np.uint32), bool(allowed)
            if len(self._read) > MASKS_KEPT:
                self._read.popitem(last=False)
        return found


class OutlinesMatcher:
    """Matcher state of one text: the states passed so far."""

    def __init__(self, grammar: OutlinesGrammar, index: Index) -> None:
        self._grammar, self._index = grammar, index
        self._states = [index.get_initial_state()]

    @property
    def is_terminated(self) -> bool:
        return not self._grammar.following(self._states[-1])[1]

    @property
    def is_accepting(self) -> bool:
        return self._index.is_final_state(self._states[-1])

    def fill(self, mask: Tensor) -> None:
        words: Any = mask.numpy().view("uint32")
        words[:] = self._grammar.following(self._states[-1])[0]

    def accept(self, token_id: int) -> bool:
        state = self._index.get_next_state(self._states[-1], token_id)
        if state is not None:
            self._states.append(state)
        return state is not None

    def rollback(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def jump_forward(self) -> tuple[int, ...]:
        """Always empty: one text can be tokenized in several ways."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    kinds = frozenset(("json_schema", "regex", "choice"))
    yield GrammarBackend("outlines", kinds, Outlines, priority=50, isolated=True)
