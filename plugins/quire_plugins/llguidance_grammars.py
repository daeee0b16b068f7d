"""Structured output by llguidance: every kind of constraint, compiled in milliseconds, masks made as the text grows.

The library bounds its own work and lets other threads run meanwhile, so that it compiles in this process. It refuses
the keywords of JSON schema that it does not enforce.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from quire import GrammarBackend, hookimpl
from quire.errors import BadRequest, CannotConstrain
from quire.records import Context
from quire.structured import Structured
from quire_plugins.forced_texts import all_short
from quire_plugins.json_schemas import SAYS_SOMETHING, WHITESPACE, check_keywords, read, texts
from quire_plugins.lark_grammars import as_lark, calls, of_content, settings, structural_tags, with_uri_references
from quire_plugins.llguidance_tokens import VocabularyTokens
from quire_plugins.regexes import portable
from quire_plugins.structural_lark import literal
from quire_plugins.structural_tags import blaming, content_of, older_tags

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from torch import Tensor

KEYWORDS = SAYS_SOMETHING - {
    *(
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
    ),
    *("maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    "uniqueItems",
}
"""Keywords of JSON schema that it enforces."""
KINDS = frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag", "calls"))


LARGE = 16_384
"""Characters of a source that is compiled in another process first."""
MANY = 8
"""Patterns that may meet in one text; with each more the library may take twice as long."""
MAX_STATES = 100_000
"""States of one grammar's lexer: a hundred megabytes."""
MAX_ITEMS = 20_000
"""Items of its parser that one mask may take."""
MAX_ROW = 640
"""Items of one row of the parser, which it compares with each other, for what clients put together themselves."""
TIGHT = ("grammar", "structural_tag")
"""Kinds for which that is so."""
Attempted: TypeAlias = tuple[str, bool]
"""A constraint in the library's own words, and whether it is of those kinds."""


def doubtful(asked: Structured) -> bool:
    """Whether it may take the library long: it is large, or one text may have to meet many patterns."""
    source = asked.source
    if len(source) >= LARGE:
        return True
    if asked.kind == "grammar":
        return any(mark in source for mark in ("&", "~", "%"))
    if asked.kind not in ("json_schema", "calls", "structural_tag"):
        return False
    if "\\u" in source:  # in which keywords may hide
        return True
    meets = any(word in source for word in ("allOf", "$ref", "patternProperties", "oneOf", "anyOf"))
    return meets and source.count("pattern") + source.count("format") >= MANY


class LlGuidance:
    """llguidance for one vocabulary."""

    def __init__(self, context: Context) -> None:
        import llguidance

        tokenizer: Any = context.tokenizer
        size = context.vocab_size or tokenizer.vocab_size
        self._library = llguidance
        # Some id must end the text in the library's eyes; the host has its own ends, and matchers do not offer this.
        # Best is one more than there are, but where masks would need a word more for it, a special token is cheaper.
        self._end = size if size % 32 else min(tokenizer.special_ids, default=size)
        size = max(size, self._end + 1)
        self._words = -(-size // 32)
        self._special = {name: i for name, i in tokenizer.vocab.items() if i in tokenizer.special_ids}
        tokens = llguidance.TokenizerWrapper(VocabularyTokens(tokenizer, size, self._end))
        self._tokenizer = llguidance.LLTokenizer(tokens, n_vocab=size, eos_token=self._end)
        self._limits = llguidance.LLParserLimits(
            step_max_items=MAX_ITEMS, max_lexer_states=MAX_STATES, verbose_errors=False
        )
        self._tight = llguidance.LLParserLimits(
            max_items_in_row=MAX_ROW, step_max_items=MAX_ITEMS, max_lexer_states=MAX_STATES, verbose_errors=False
        )

    def compile(self, asked: Structured) -> LlGrammar:
        """Raises BadRequest with what the library says of a source that it does not take."""
        return self._made(asked)[0]

    def warm_up(self) -> None:
        """Nothing: what takes time was built."""

    def attempt(self, asked: Structured) -> Attempted:
        """See `quire.records.TriesElsewhere`: the constraint in the library's own words, which it has compiled."""
        return self._made(asked)[1]

    def _made(self, asked: Structured) -> tuple[LlGrammar, Attempted]:
        """The grammar, and the constraint in the library's own words."""
        written = self._written(asked), asked.kind in TIGHT
        try:
            return self.finish(written), written
        except CannotConstrain:
            for content in map(content_of, older_tags(asked)):
                with blaming(content):
                    self.finish((self._written(of_content(content, asked)), True))
            raise

    def finish(self, attempted: Attempted) -> LlGrammar:
        """See `quire.records.TriesElsewhere`; in it the library lets other threads have the interpreter."""
        written, tight = attempted
        limits = self._tight if tight else self._limits
        matcher = self._library.LLMatcher(self._tokenizer, written, log_level=0, limits=limits)
        if matcher.is_error():
            raise CannotConstrain(_clause(matcher.get_error()))
        matcher.compute_bitmask()  # makes much of what all masks are made from
        if matcher.is_error():
            raise CannotConstrain(_clause(matcher.get_error()))
        return LlGrammar(matcher, self._end, self._words)

    def _written(self, asked: Structured) -> str:
        """The constraint in the library's own words."""
        library = self._library.LLMatcher
        if asked.kind in ("json_schema", "json_object"):
            schema = _schema(asked)
            if all_short(schema):
                return library.grammar_from_json_schema(json.dumps(schema), overrides=_style(asked))
            value = json.dumps({**schema, "x-guidance": _style(asked)})
            return library.grammar_from_lark(f"{settings(forcing=False)}\nstart: %json {value}")
        if asked.kind == "regex":
            return library.grammar_from_regex(portable(asked.source))
        if asked.kind == "choice":
            return library.grammar_from_lark(f"start: {' | '.join(map(literal, texts(asked)))}")
        if asked.kind == "grammar":
            # last, so that the lines which errors name are those of the source
            return library.grammar_from_lark(f"{as_lark(asked.source)}\n{settings(forcing=False)}")
        make = calls if asked.kind == "calls" else structural_tags
        return library.grammar_from_lark(make(asked, _style(asked), self._special))


def _schema(asked: Structured) -> dict[str, Any]:
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    return with_uri_references(schema)


def _style(asked: Structured) -> dict[str, Any]:
    """How JSON is written, and that nothing is to be ignored or approximated."""
    style: dict[str, Any] = {"whitespace_flexible": asked.any_whitespace, "coerce_one_of": False, "lenient": False}
    if asked.whitespace_pattern is not None:
        style["whitespace_pattern"] = portable(asked.whitespace_pattern)
    elif asked.any_whitespace:
        style["whitespace_pattern"] = WHITESPACE
    return style


def _clause(message: str) -> str:
    """What the library says, on one line."""
    line = " ".join(message.split())
    return line[:300].rstrip(".") + "."


class LlGrammar:
    """A compiled grammar; its matcher never moves."""

    def __init__(self, matcher: LLMatcher, end: int, words: int) -> None:
        self._matcher, self._end, self._words = matcher, end, words

    def start(self) -> LlMatcher:
        """A matcher at the beginning."""
        return LlMatcher(self._matcher.deep_copy(), self._end, self._words)


class LlMatcher:
    """Where one text stands.

    Where the text is settled, its tokens are those that the tokenizer would write: what is settled at some place, and
    how much of it has come, is remembered for each token (None: not looked at yet), so that it stays what it is.
    """

    def __init__(self, matcher: LLMatcher, end: int, words: int) -> None:
        self._matcher, self._end, self._words = matcher, end, words
        self._settled: list[tuple[Sequence[int], int] | None] = [None]

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped()

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_accepting()

    def fill(self, mask: Tensor) -> None:
        """See `quire.records.Matcher`. Raises BadRequest when the text became too ambiguous to follow."""
        tokens, at = self._settled_here()
        if tokens:
            mask.zero_()
            mask.numpy().view("uint32")[tokens[at] // 32] = 1 << tokens[at] % 32
            return
        if len(mask) == self._words:
            self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), 4 * len(mask))
        else:  # the id that stands for the end of text lies beyond the mask
            mask.numpy().view("uint8")[:] = memoryview(self._matcher.compute_bitmask())[: 4 * len(mask)]
        self._check()
        if self._end // 32 < len(mask):
            words: Any = mask.numpy().view("uint32")
            words[self._end // 32] &= ~(1 << self._end % 32) & 0xFFFFFFFF

    def accept(self, token_id: int) -> bool:
        """Advance by one token. Raises BadRequest when the text became too ambiguous to follow."""
        tokens, at = self._settled_here()
        if token_id == self._end or (tokens and token_id != tokens[at]):
            return False
        if self._matcher.try_consume_tokens([token_id]) != 1:
            self._check()
            return False
        self._settled.append((tokens, at + 1) if at + 1 < len(tokens) else None)
        return True

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadRequest(f"The constraint cannot be followed any further: {_clause(self._matcher.get_error())}")

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        self._matcher.rollback(count)
        del self._settled[len(self._settled) - count :]

    def forced(self) -> Sequence[int]:
        """The tokens of the text that is settled."""
        tokens, at = self._settled_here()
        return tokens[at:]

    def _settled_here(self) -> tuple[Sequence[int], int]:
        known = self._settled[-1]
        if known is None:
            known = self._settled[-1] = self._matcher.compute_ff_tokens(), 0
        return known


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    """Offer `guidance`."""
    yield GrammarBackend("guidance", KINDS, LlGuidance, priority=100, doubtful=doubtful)
