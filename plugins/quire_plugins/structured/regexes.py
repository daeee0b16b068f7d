"""Rewrites regular expressions of Python's syntax so that other engines interpret them the same way.

Dialects differ without errors: `[a&&b]`, `[[a]]`, `\\w`, `$`. Back ends get only what this module writes: no anchors,
no names, no lazy repeats, and classes of plain ranges. What has no equivalent is rejected with the reason.
"""

from __future__ import annotations

import re
import warnings
from re import _constants as codes, _parser as parser  # type: ignore[attr-defined]
from typing import Any
from unicodedata import unidata_version

from quire.errors import BadRequest, UnsupportedConstraint

MAX_REPEAT = 4096
"""Maximum number of copies of a part; nested repeats multiply."""
MAX_GROUPS = 200
"""Maximum nesting."""

CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\p{Nd}",
    codes.CATEGORY_NOT_DIGIT: r"\P{Nd}",
    codes.CATEGORY_WORD: r"\p{L}\p{N}_",
    codes.CATEGORY_SPACE: r"\t-\r\x1C- \x85\xA0\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}",
}
"""The exact ranges of Python's character classes."""
NEGATED = {
    codes.CATEGORY_NOT_WORD: codes.CATEGORY_WORD,
    codes.CATEGORY_NOT_SPACE: codes.CATEGORY_SPACE,
}
_AGE = ".".join(unidata_version.split(".")[:2])
STARTS = (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING)
ENDS = (codes.AT_END, codes.AT_END_STRING)
REASONS = {
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "conditions",
    "AT": "^, $, \\b and the like inside a text",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repeats",
}


def portable(pattern: str, in_json: bool = False) -> str:
    """Returns a pattern of whole texts in the common syntax of Rust's regex crate and Python.

    in_json: the text is inside a JSON string, where some characters are escaped. Raises BadRequest for an invalid
    regular expression, and UnsupportedConstraint for features that only Python's engine has.
    """
    try:
        tree = _parsed(pattern)
        return _Writer(tree.state.flags, in_json).all(_without_anchors(list(tree)), 1, 0)
    except (re.error, OverflowError) as error:
        raise BadRequest(f"`regex` is wrong: {error}.", "structured_outputs") from error
    except RecursionError:
        raise UnsupportedConstraint(f"its regex nests too deeply (at most {MAX_GROUPS} levels).") from None


def _parsed(pattern: str) -> Any:
    if not any(pair in pattern for pair in ("[[", "[^[", "&&", "--", "~~", "||")):
        return parser.parse(pattern)
    with warnings.catch_warnings():  # Python warns that the interpretation may change in a later version
        warnings.simplefilter("ignore", FutureWarning)
        return parser.parse(pattern)


def _without_anchors(items: list[Any]) -> list[Any]:
    """Removes anchors: the whole text is matched anyway. (`$` would also match before a final newline; that is not
    supported.)
    """
    while items and items[0][0] is codes.AT and items[0][1] in STARTS:
        items = items[1:]
    while items and items[-1][0] is codes.AT and items[-1][1] in ENDS:
        items = items[:-1]
    return items


class _Writer:
    """Writes the parts of one pattern. copies: number of copies of the current part, from the repeats around it."""

    def __init__(self, flags: int, in_json: bool) -> None:
        self._flags = flags
        self._never = r'"\\\x00-\x1F' if in_json else ""

    def all(self, items: Any, copies: int, depth: int) -> str:
        """Writes parts in sequence."""
        if depth > MAX_GROUPS:
            raise UnsupportedConstraint(f"its regex nests too deeply (at most {MAX_GROUPS} levels).")
        return "".join(self._one(code, value, copies, depth) for code, value in items)

    def _one(self, code: Any, value: Any, copies: int, depth: int) -> str:
        if code is codes.LITERAL:
            return self._cased(self._literal(value))
        if code is codes.NOT_LITERAL:
            return self._cased(f"[^{_character(value)}{self._never}]")
        if code is codes.ANY:
            return self._any()
        if code is codes.IN:
            return self._cased(self._class(value))
        if code is codes.BRANCH:
            return f"(?:{'|'.join(self.all(branch, copies, depth + 1) for branch in value[1])})"
        if code is codes.SUBPATTERN:
            return self._group(value, copies, depth)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            return self._repeat(value, copies, depth)
        raise UnsupportedConstraint(f"its regex uses {REASONS.get(str(code), str(code))}, which cannot be enforced.")

    def _literal(self, value: int) -> str:
        if self._never and value < 32:
            raise UnsupportedConstraint("its regex has control characters in a JSON string, which cannot be enforced.")
        escaped = self._never and chr(value) in '"\\'
        return ("\\\\" if escaped else "") + _character(value)

    def _any(self) -> str:
        if self._never:
            return f"[^{self._never}]"
        return r"[\x00-\u{10FFFF}]" if self._flags & re.DOTALL else r"[^\n]"

    def _group(self, value: Any, copies: int, depth: int) -> str:
        _, add, remove, items = value
        before = self._flags
        self._flags = (before | add) & ~remove
        try:
            return f"(?:{self.all(items, copies, depth + 1)})"
        finally:
            self._flags = before

    def _repeat(self, value: Any, copies: int, depth: int) -> str:
        least, most, items = value
        endless = most is codes.MAXREPEAT
        copies *= max(1, least if endless else most)
        if copies > MAX_REPEAT:
            raise UnsupportedConstraint(f"its regex repeats a part up to {copies} times; {MAX_REPEAT} are the most.")
        part = f"(?:{self.all(items, copies, depth + 1)})"
        if endless and least < 2:
            return part + "*+"[least]
        return f"{part}{{{least},{'' if endless else most}}}"

    def _class(self, items: Any) -> str:
        negated = items[0][0] is codes.NEGATE
        if self._never and not negated and any(map(_needs_escape, items)):
            raise UnsupportedConstraint(
                "its regex has a class with characters that JSON escapes, which cannot be enforced."
            )
        parts: list[str] = []
        for code, value in items[negated:]:
            if code is codes.LITERAL:
                parts.append(_character(value))
            elif code is codes.RANGE:
                parts.append(f"{_character(value[0])}-{_character(value[1])}")
            elif value in CATEGORIES:
                parts.append(self._category(value) if negated else self._known(value))
            elif len(items) == 1:
                return f"[^{self._category(NEGATED[value])}{self._never}]"
            else:
                raise UnsupportedConstraint("its regex has \\W or \\S inside [ ], which cannot be enforced.")
        return f"[{'^' * negated}{''.join(parts)}{self._never * negated}]"

    def _known(self, category: Any) -> str:
        """Characters of a category that Python knows; other engines may know more."""
        found = self._category(category)
        return f"[{found}&&\\p{{Age={_AGE}}}]" if "\\p{" in found else found

    def _category(self, category: Any) -> str:
        if self._flags & re.ASCII:
            ascii_only = {
                codes.CATEGORY_DIGIT: "0-9",
                codes.CATEGORY_WORD: "0-9A-Za-z_",
                codes.CATEGORY_SPACE: r"\t-\r ",
            }
            if category not in ascii_only:
                raise UnsupportedConstraint("its regex has \\D and (?a), which cannot be enforced.")
            return ascii_only[category]
        return CATEGORIES[category]

    def _cased(self, text: str) -> str:
        return f"(?i:{text})" if self._flags & re.IGNORECASE else text


def _needs_escape(item: Any) -> bool:
    """Whether a part of a class has characters that must be escaped in JSON strings."""
    code, value = item
    if code is codes.CATEGORY:
        return value not in (codes.CATEGORY_DIGIT, codes.CATEGORY_WORD)
    low, high = value if code is codes.RANGE else (value, value)
    return low < 32 or any(low <= mark <= high for mark in map(ord, '"\\'))


def _character(code: int) -> str:
    """Writes one character, inside or outside of a class."""
    character = chr(code)
    if 0xD800 <= code < 0xE000:
        raise BadRequest("`regex` has half of a surrogate pair, which no text has.", "structured_outputs")
    if character.isascii() and character.isalnum():
        return character
    return f"\\u{{{code:X}}}"  # not \\xNN: some engines read more digits
