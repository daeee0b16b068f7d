"""Structured output with llguidance: every kind of constraint, compiled in milliseconds, masks computed during
decoding.

The library limits its own work and releases the GIL, so it compiles in this process. It rejects JSON-schema keywords
that it does not enforce.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from quire.plugin import BadRequest, Context, GrammarBackend, StructuredSpec, UnsupportedConstraint, hookimpl
from quire_plugins.structured.json_schemas import CONSTRAINTS, WHITESPACE, check_keywords, read, texts
from quire_plugins.structured.jump_forward_limits import all_short
from quire_plugins.structured.lark_grammars import (
    as_lark,
    calls,
    of_content,
    settings,
    structural_tags,
    with_uri_references,
)
from quire_plugins.structured.llguidance_tokens import VocabularyTokens
from quire_plugins.structured.regexes import portable
from quire_plugins.structured.structural_lark import literal
from quire_plugins.structured.structural_tags import blaming, content_of, older_tags

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from torch import Tensor

KEYWORDS = CONSTRAINTS - {
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
"""JSON-schema keywords that llguidance enforces."""
KINDS = frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag", "calls"))


LARGE = 16_384
"""A source with this many characters is compiled in a child process first."""
PROBE_MIN_PATTERNS = 8
"""Number of patterns that may match the same text; each further one can double the compile time."""
MAX_STATES = 100_000
"""Maximum number of lexer states of one grammar: about a hundred megabytes."""
MAX_ITEMS = 20_000
"""Maximum number of parser items for one mask."""
MAX_ROW = 640
"""Maximum number of items in one parser row, which the library compares pairwise; for grammars that clients compose."""
TIGHT = ("grammar", "structural_tag")
"""Kinds that this limit applies to."""
Attempted: TypeAlias = tuple[str, bool]
"""A constraint in the library's format, and whether it is of those kinds."""


def _may_take_long(asked: StructuredSpec) -> bool:
    """Whether compilation may take long: the source is large, or one text may have to match many patterns."""
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
    return meets and source.count("pattern") + source.count("format") >= PROBE_MIN_PATTERNS


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

    def compile(self, asked: StructuredSpec) -> LlGrammar:
        """Raises BadRequest with the library's message for a source that it rejects."""
        return self._made(asked)[0]

    def needs_process(self, asked: StructuredSpec) -> bool:
        """Returns whether compilation may take long, or may exceed the limits that the library enforces."""
        return _may_take_long(asked)

    def warm_up(self) -> None:
        """Nothing to do: the constructor does the slow work."""

    def compile_in_worker(self, asked: StructuredSpec) -> Attempted:
        """Compiles the constraint once to see that it ends in time; returns it in the library's format."""
        return self._made(asked)[1]

    def _made(self, asked: StructuredSpec) -> tuple[LlGrammar, Attempted]:
        """Returns the grammar, and the constraint in the library's format."""
        written = self._written(asked), asked.kind in TIGHT
        try:
            return self.load(written), written
        except UnsupportedConstraint:
            for content in map(content_of, older_tags(asked)):
                with blaming(content):
                    self.load((self._written(of_content(content, asked)), True))
            raise

    def load(self, attempted: Attempted) -> LlGrammar:
        """Compiles a constraint that `compile_in_worker` has tried. The library releases the GIL."""
        written, tight = attempted
        limits = self._tight if tight else self._limits
        matcher = self._library.LLMatcher(self._tokenizer, written, log_level=0, limits=limits)
        if matcher.is_error():
            raise UnsupportedConstraint(_clause(matcher.get_error()))
        matcher.compute_bitmask()  # makes much of what all masks are made from
        if matcher.is_error():
            raise UnsupportedConstraint(_clause(matcher.get_error()))
        return LlGrammar(matcher, self._end, self._words)

    def _written(self, asked: StructuredSpec) -> str:
        """Returns the constraint in the library's format."""
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


def _schema(asked: StructuredSpec) -> dict[str, Any]:
    schema = read(asked)
    check_keywords(schema, KEYWORDS)
    return with_uri_references(schema)


def _style(asked: StructuredSpec) -> dict[str, Any]:
    """Options for whitespace, and for strictness: nothing is ignored or approximated."""
    style: dict[str, Any] = {"whitespace_flexible": asked.any_whitespace, "coerce_one_of": False, "lenient": False}
    if asked.whitespace_pattern is not None:
        style["whitespace_pattern"] = portable(asked.whitespace_pattern)
    elif asked.any_whitespace:
        style["whitespace_pattern"] = WHITESPACE
    return style


def _clause(message: str) -> str:
    """The library's message on one line."""
    line = " ".join(message.split())
    return line[:300].rstrip(".") + "."


class LlGrammar:
    """A compiled grammar. Its own matcher never advances."""

    def __init__(self, matcher: LLMatcher, end: int, words: int) -> None:
        self._matcher, self._end, self._words = matcher, end, words

    def start(self) -> LlMatcher:
        return LlMatcher(self._matcher.deep_copy(), self._end, self._words)


class LlMatcher:
    """Matcher state of one text.

    Where the text is forced, its tokens are those of the tokenizer. The forced text at a position, and how much of it
    has been generated, are remembered per token (None: not computed yet), so that they stay the same.
    """

    def __init__(self, matcher: LLMatcher, end: int, words: int) -> None:
        self._matcher, self._end, self._words = matcher, end, words
        self._settled: list[tuple[Sequence[int], int] | None] = [None]

    @property
    def is_terminated(self) -> bool:
        return self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    def fill(self, mask: Tensor) -> None:
        """Fills the mask. Raises BadRequest when the text has become too ambiguous to follow."""
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
        """Advances by one token. Raises BadRequest when the text has become too ambiguous to follow."""
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
        self._matcher.rollback(count)
        del self._settled[len(self._settled) - count :]

    def jump_forward(self) -> Sequence[int]:
        """The tokens of the forced text."""
        tokens, at = self._settled_here()
        return tokens[at:]

    def _settled_here(self) -> tuple[Sequence[int], int]:
        known = self._settled[-1]
        if known is None:
            known = self._settled[-1] = self._matcher.compute_ff_tokens(), 0
        return known


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    yield GrammarBackend("guidance", KINDS, LlGuidance, priority=100)
