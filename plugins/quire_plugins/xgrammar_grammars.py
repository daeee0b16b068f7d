"""Structured output by xgrammar: pushdown automata whose masks are mostly made when a grammar is compiled.

Nothing bounds the compiling of a grammar, so that it is done in a process that can be ended. Keywords of JSON schema
that the library passes over are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire import GrammarBackend, hookimpl
from quire.errors import CannotConstrain
from quire.records import Context
from quire.structured import Structured
from quire_plugins.json_schemas import (
    MAX_INDENT,
    MAX_TABS,
    Schema,
    check_installed,
    check_keywords,
    check_simple,
    read,
    schemas,
    texts,
)
from quire_plugins.regexes import portable
from quire_plugins.structural_tags import ABOUT, blaming, read_format

if TYPE_CHECKING:
    from torch import Tensor
    from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo

KEYWORDS = frozenset(
    (
        *("$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "maximum"),
        *("exclusiveMaximum", "exclusiveMinimum", "minItems", "minLength", "minimum", "pattern", "prefixItems"),
        *("properties", "required", "type"),
    )
)


MARK = 37
"""A bound of white space that sets the library's own apart from that of clients in a grammar."""
_GAPS = re.compile(rf'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|(?P<gap>\bwhitespace(?:_\d+)?\{{0, {MARK}\}})', re.DOTALL)
"""Texts and classes, which stay as they are, and what the library puts between tokens of JSON if that is bounded."""
_GAP = f'json_gap ::= "" | " " | "\\n" [ ]{{0,{MAX_INDENT}}} | "\\n" [\\t]{{1,{MAX_TABS}}}\n'


class XGrammar:
    """xgrammar for one vocabulary."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: tuple[TokenizerInfo, GrammarCompiler] | None = None

    def _library(self) -> tuple[TokenizerInfo, GrammarCompiler]:
        """Made when first needed, both here and in the process that compiles."""
        if self._made is None:
            import xgrammar

            tokenizer: Any = self._context.tokenizer
            size = self._context.vocab_size or tokenizer.vocab_size
            texts = [
                b"" if i in tokenizer.special_ids else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
            ]
            info = xgrammar.TokenizerInfo(texts, vocab_size=size, stop_token_ids=[])
            self._made = info, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        return self._made

    def check(self, asked: Structured) -> None:
        """See `quire.records.CompilesElsewhere`."""
        check_installed("xgrammar")
        written = _written(asked)
        tokenizer: Any = self._context.tokenizer
        special = [name for name, i in tokenizer.vocab.items() if i in tokenizer.special_ids]
        if asked.kind == "structural_tag" and any(json.dumps(name)[1:-1] in written for name in special):
            raise CannotConstrain("it would spell out the special tokens that are in the tag.")

    def warm_up(self) -> None:
        """See `quire.records.CompilesElsewhere`."""
        self._library()

    def compile(self, asked: Structured) -> str:
        """A compiled grammar in the library's own JSON."""
        _, compiler = self._library()
        try:
            return _compiled(compiler, asked).serialize_json()
        except RuntimeError as error:
            raise CannotConstrain(" ".join(str(error).split())[-300:].rstrip(".") + ".") from error

    def restore(self, compiled: str) -> XGrammarGrammar:
        """A grammar of that JSON."""
        import xgrammar

        info, _ = self._library()
        grammar = xgrammar.CompiledGrammar.deserialize_json(compiled, info)
        return XGrammarGrammar(grammar, info.vocab_size)


def _compiled(compiler: GrammarCompiler, asked: Structured) -> CompiledGrammar:
    source = _written(asked)
    if asked.kind == "regex":
        return compiler.compile_regex(source)
    if asked.kind in ("choice", "grammar"):
        return compiler.compile_grammar(source)
    from xgrammar import Grammar

    if asked.kind == "structural_tag":
        return compiler.compile_grammar(_with_gaps(_of_tag(compiler, source)))
    if not asked.any_whitespace:
        return compiler.compile_json_schema(source, any_whitespace=False, separators=(",", ":"), strict_mode=False)
    bounded = Grammar.from_json_schema(source, any_whitespace=True, max_whitespace_cnt=MARK, strict_mode=False)
    return compiler.compile_grammar(_with_gaps(str(bounded)))


def _of_tag(compiler: GrammarCompiler, source: str) -> str:
    """The grammar that a structural tag is."""
    from xgrammar import Grammar

    try:
        return str(Grammar.from_structural_tag(source))
    except RuntimeError:  # it is wrong, or has names of tokens, for which the vocabulary is needed
        return str(compiler.compile_structural_tag(source).grammar)


def _with_gaps(ebnf: str) -> str:
    """A grammar with a space or an indented line where the library has so much white space of any kind."""
    parts = _GAPS.sub(lambda part: "json_gap" if part["gap"] else part[0], ebnf)
    return f"{parts}\n{_GAP}"


def _written(asked: Structured) -> str:
    """A constraint as the library is to read it. Raises BadRequest for what it must not be given."""
    if asked.kind == "regex":
        return _plain(portable(asked.source))
    if asked.kind == "choice":
        return "root ::= " + " | ".join(map(_literal, texts(asked)))
    if asked.kind == "grammar" and "::=" not in asked.source:
        raise CannotConstrain("it takes grammars in EBNF (`root ::= …`), not in Lark.")
    if asked.kind == "grammar":
        return asked.source
    if asked.whitespace_pattern is not None:
        raise CannotConstrain("it has no `whitespace_pattern`.")
    if asked.kind == "structural_tag":
        return _structural_tag(asked)
    return '{"type": "object"}' if asked.kind == "json_object" else json.dumps(_schema(asked))


def _structural_tag(asked: Structured) -> str:
    """What is checked of schemas and regexes elsewhere is checked in it too."""
    if not asked.any_whitespace:
        raise CannotConstrain("it cannot keep white space out of the JSON in structural tags.")
    root = read_format(asked)
    waiting: list[Any] = [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict) and "json_schema" in one:
            source = json.dumps(one["json_schema"])
            with blaming(one):
                one["json_schema"] = _schema(replace(asked, kind="json_schema", source=source))
            for name in ABOUT:  # the library does not know them
                one.pop(name, None)
            if one.get("type") == "json_schema" and one.get("max_whitespace_cnt") is None:
                one["max_whitespace_cnt"] = MARK
        elif isinstance(one, dict):
            if one.get("type") == "regex" and isinstance(one.get("pattern"), str):
                one["pattern"] = _plain(portable(one["pattern"]))
            waiting += one.values()
    return json.dumps({"type": "structural_tag", "format": root})


def _schema(asked: Structured) -> Schema:
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    check_simple(schema)
    for each in schemas(schema):
        if "pattern" in each:
            if each.keys() & {"minLength", "maxLength"}:
                raise CannotConstrain("it does not enforce lengths beside `pattern`.")
            each["pattern"] = f"^{_plain(portable(each['pattern'], in_json=True))}$"
        elif each.keys() & {"minLength", "maxLength"}:  # whose characters the library does not choose as JSON does
            least, most = each.pop("minLength", 0), each.pop("maxLength", "")
            each["pattern"] = f'^[^"\\\\\\x00-\\x1F]{{{least},{most}}}$'
        if each.get("type") == "object" and each.get("additionalProperties", True) is not False:
            raise CannotConstrain("it enforces objects only with `additionalProperties` false.")
    return schema


def _literal(text: str) -> str:
    return json.dumps(text)


def _plain(regex: str) -> str:
    """A portable regex, if the library reads all of it."""
    if "\\p{" in regex or "\\P{" in regex:
        raise CannotConstrain("its regex has \\d, \\w or their opposites, which it reads as ASCII only.")
    if "(?i:" in regex:
        raise CannotConstrain("its regex ignores case.")
    return regex


class XGrammarGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: CompiledGrammar, vocab_size: int) -> None:
        self._compiled, self._vocab_size = compiled, vocab_size

    @property
    def num_bytes(self) -> int:
        """As the library counts."""
        return int(self._compiled.memory_size_bytes)

    def start(self) -> XGrammarMatcher:
        """A matcher at the beginning."""
        from xgrammar import GrammarMatcher

        return XGrammarMatcher(GrammarMatcher(self._compiled), self._vocab_size)


class XGrammarMatcher:
    """Where one text stands."""

    def __init__(self, matcher: GrammarMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words, self._beyond = -(-vocab_size // 32), vocab_size % 32

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        if not self.complete:
            return False
        import numpy as np

        mask = np.zeros((1, self._words), np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        return not mask.any()

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_completed()

    def fill(self, mask: Tensor) -> None:
        """See `quire.records.Matcher`."""
        self._matcher.fill_next_token_bitmask(mask.numpy()[None])
        if self._beyond:
            mask[-1] &= (1 << self._beyond) - 1

    def accept(self, token_id: int) -> bool:
        """Advance by one token."""
        return self._matcher.accept_token(token_id)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        self._matcher.rollback(count)

    def forced(self) -> tuple[int, ...]:
        """None: what is forced is a text, which many tokens can write."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    """Offer `xgrammar`."""
    kinds = frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"))
    yield GrammarBackend("xgrammar", kinds, XGrammar, priority=40, isolated=True)
