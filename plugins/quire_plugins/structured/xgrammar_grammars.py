"""Structured output with xgrammar: pushdown automata whose masks are mostly computed at compilation.

The compilation time has no limit, so a grammar is compiled in a child process. JSON-schema keywords that the library
ignores are rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import Context, GrammarBackend, StructuredSpec, UnsupportedConstraint, hookimpl
from quire_plugins.structured.json_schemas import (
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
from quire_plugins.structured.regexes import portable
from quire_plugins.structured.structural_tags import ABOUT, blaming, read_format

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
"""A limit on whitespace that distinguishes the library's own whitespace from that of clients in a grammar."""
_GAPS = re.compile(rf'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|(?P<gap>\bwhitespace(?:_\d+)?\{{0, {MARK}\}})', re.DOTALL)
"""Texts and classes, which stay unchanged, and the library's whitespace between tokens of JSON, if it is limited."""
_GAP = f'json_gap ::= "" | " " | "\\n" [ ]{{0,{MAX_INDENT}}} | "\\n" [\\t]{{1,{MAX_TABS}}}\n'


class XGrammar:
    """xgrammar for one vocabulary."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: tuple[TokenizerInfo, GrammarCompiler] | None = None

    def _library(self) -> tuple[TokenizerInfo, GrammarCompiler]:
        """The library's compiler, created on first use in this process and in the compiling process."""
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

    def needs_process(self, asked: StructuredSpec) -> bool:
        """Returns True, since nothing bounds the library's work. Raises UnsupportedConstraint or BadRequest."""
        check_installed("xgrammar")
        written = _written(asked)
        tokenizer: Any = self._context.tokenizer
        special = [name for name, i in tokenizer.vocab.items() if i in tokenizer.special_ids]
        if asked.kind == "structural_tag" and any(json.dumps(name)[1:-1] in written for name in special):
            raise UnsupportedConstraint("it would spell out the special tokens that are in the tag.")
        return True

    def warm_up(self) -> None:
        """Imports the library and creates its compiler."""
        self._library()

    def compile_in_worker(self, asked: StructuredSpec) -> str:
        """Returns a compiled grammar in the library's JSON."""
        _, compiler = self._library()
        try:
            return _compiled(compiler, asked).serialize_json()
        except RuntimeError as error:
            raise UnsupportedConstraint(" ".join(str(error).split())[-300:].rstrip(".") + ".") from error

    def load(self, compiled: str) -> XGrammarGrammar:
        """Returns a grammar from the library's JSON."""
        import xgrammar

        info, _ = self._library()
        grammar = xgrammar.CompiledGrammar.deserialize_json(compiled, info)
        return XGrammarGrammar(grammar, info.vocab_size)


def _compiled(compiler: GrammarCompiler, asked: StructuredSpec) -> CompiledGrammar:
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
    """The grammar of a structural tag."""
    from xgrammar import Grammar

    try:
        return str(Grammar.from_structural_tag(source))
    except RuntimeError:  # it is wrong, or has names of tokens, for which the vocabulary is needed
        return str(compiler.compile_structural_tag(source).grammar)


def _with_gaps(ebnf: str) -> str:
    """Replaces the library's arbitrary whitespace in a grammar by one space or an indented line."""
    parts = _GAPS.sub(lambda part: "json_gap" if part["gap"] else part[0], ebnf)
    return f"{parts}\n{_GAP}"


def _written(asked: StructuredSpec) -> str:
    """A constraint in the library's format. Raises BadRequest for what the library must not get."""
    if asked.kind == "regex":
        return _plain(portable(asked.source))
    if asked.kind == "choice":
        return "root ::= " + " | ".join(map(_literal, texts(asked)))
    if asked.kind == "grammar" and "::=" not in asked.source:
        raise UnsupportedConstraint("it takes grammars in EBNF (`root ::= …`), not in Lark.")
    if asked.kind == "grammar":
        return asked.source
    if asked.whitespace_pattern is not None:
        raise UnsupportedConstraint("it has no `whitespace_pattern`.")
    if asked.kind == "structural_tag":
        return _structural_tag(asked)
    return '{"type": "object"}' if asked.kind == "json_object" else json.dumps(_schema(asked))


def _structural_tag(asked: StructuredSpec) -> str:
    """Checks and rewrites the schemas and regexes inside a structural tag."""
    if not asked.any_whitespace:
        raise UnsupportedConstraint("it cannot keep white space out of the JSON in structural tags.")
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


def _schema(asked: StructuredSpec) -> Schema:
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    check_simple(schema)
    for each in schemas(schema):
        if "pattern" in each:
            if each.keys() & {"minLength", "maxLength"}:
                raise UnsupportedConstraint("it does not enforce lengths beside `pattern`.")
            each["pattern"] = f"^{_plain(portable(each['pattern'], in_json=True))}$"
        elif each.keys() & {"minLength", "maxLength"}:  # whose characters the library does not choose as JSON does
            least, most = each.pop("minLength", 0), each.pop("maxLength", "")
            each["pattern"] = f'^[^"\\\\\\x00-\\x1F]{{{least},{most}}}$'
        if each.get("type") == "object" and each.get("additionalProperties", True) is not False:
            raise UnsupportedConstraint("it enforces objects only with `additionalProperties` false.")
    return schema


def _literal(text: str) -> str:
    return json.dumps(text)


def _plain(regex: str) -> str:
    """A portable regex, if the library supports all of it."""
    if "\\p{" in regex or "\\P{" in regex:
        raise UnsupportedConstraint("its regex has \\d, \\w or their opposites, which it reads as ASCII only.")
    if "(?i:" in regex:
        raise UnsupportedConstraint("its regex ignores case.")
    return regex


class XGrammarGrammar:
    """A grammar that xgrammar has compiled."""

    def __init__(self, compiled: CompiledGrammar, vocab_size: int) -> None:
        self._compiled, self._vocab_size = compiled, vocab_size

    @property
    def num_bytes(self) -> int:
        """Size as reported by the library."""
        return int(self._compiled.memory_size_bytes)

    def start(self) -> XGrammarMatcher:
        from xgrammar import GrammarMatcher

        return XGrammarMatcher(GrammarMatcher(self._compiled), self._vocab_size)


class XGrammarMatcher:
    """Matcher state of one text."""

    def __init__(self, matcher: GrammarMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words, self._beyond = -(-vocab_size // 32), vocab_size % 32

    @property
    def is_terminated(self) -> bool:
        if not self.is_accepting:
            return False
        import numpy as np

        mask = np.zeros((1, self._words), np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        return not mask.any()

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_completed()

    def fill(self, mask: Tensor) -> None:
        self._matcher.fill_next_token_bitmask(mask.numpy()[None])
        if self._beyond:
            mask[-1] &= (1 << self._beyond) - 1

    def accept(self, token_id: int) -> bool:
        return self._matcher.accept_token(token_id)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def jump_forward(self) -> tuple[int, ...]:
        """Always empty: one text can be tokenized in several ways."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    kinds = frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"))
    yield GrammarBackend("xgrammar", kinds, XGrammar, priority=40, isolated=True)
