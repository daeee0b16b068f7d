"""Structural tags in llguidance's dialect of Lark.

Free text ends at the first end of its tag. What the dialect cannot express exactly is rejected: its terminals are
greedy, so a regex must come last or be merged with its neighbours into one regex.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.errors import BadRequest, UnsupportedConstraint
from quire.params.structured import PARAM
from quire_plugins.structured.regexes import portable
from quire_plugins.structured.structural_tags import Format, children

FREE = "/(.|\\n)*/"
"""Any text without special tokens."""
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "style": ("json",),
    "any_order": (False,),
    "max_whitespace_cnt": (None,),
    "excludes": ([],),
    "max_tokens": (None,),
    "max_chars": (None,),
}
"""Fields that have no effect with these values."""
MAX_TIMES = 256
TIMES: Mapping[str, str] = {"optional": "?", "plus": "+", "star": "*"}

Ends = Sequence[str] | None
"""Texts that may follow: one of these; empty if what follows cannot end free text; None at the end of the answer."""


def literal(text: str) -> str:
    """A text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def words(text: str, special: Mapping[str, int]) -> str:
    """A text as Lark literals, with special tokens as tokens."""
    if not text:
        return ""
    names = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else literal(part) for part in parts if part)


def free_until(name: str, end: str, special: Mapping[str, int]) -> list[str]:
    """Rules for text up to and including the first `end`. A special token ends the text by itself."""
    first = min((token for token in special if token in end), key=end.index, default=None)
    if first is None:
        return [f"{name}[lazy]: {FREE} {literal(end)}"]
    before, _, _ = end.partition(first)
    if not before:
        return [f"{name}: {FREE} {words(end, special)}"]
    return [f"{name}: {name}_free {words(end[len(before) :], special)}", f"{name}_free[lazy]: {FREE} {literal(before)}"]


class Writer:
    """Writes one format. value: maps a format of type json_schema to a value in Lark."""

    def __init__(self, special: Mapping[str, int], value: Callable[[Format], str]) -> None:
        self._special, self._value = special, value
        self._rules: list[str] = []
        self._writers: Mapping[str, Callable[[Format, Ends], str]] = {
            "const_string": lambda one, ends: f"{self._words(one['value'])} {self._any_of(ends)}",
            "json_schema": lambda one, ends: f"{self._value(one)} {self._any_of(ends)}",
            "any_text": self._free,
            "sequence": self._sequence,
            "or": lambda one, ends: self._either([self._of(each, ends) for each in one["elements"]]),
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
            "optional": self._repeated,
            "plus": self._repeated,
            "star": self._repeated,
            "repeat": self._repeated,
        }

    def whole(self, root: Format) -> str:
        """Returns the rules of the grammar. Raises UnsupportedConstraint."""
        start = self._of(root, None)
        return "\n".join([f"start: {start}", *self._rules])

    def _of(self, one: Format, ends: Ends) -> str:
        """Writes a format, given what follows it."""
        for name, harmless in PLAIN.items():
            if name in one and one[name] not in harmless:
                raise UnsupportedConstraint(f"it does not enforce `{name}` of a format of type {one['type']}.")
        if one["type"] not in self._writers and one["type"] != "regex":
            raise UnsupportedConstraint(f"it takes no formats of type {one['type']}.")
        if _has_regex(one):
            pattern = self._regular(one)
            if pattern is not None:
                return self._term(pattern, ends)
        return self._writers[one["type"]](one, ends)

    def _rule(self, body: str) -> str:
        self._rules.append(f"part_{len(self._rules)}: {body}")
        return f"part_{len(self._rules) - 1}"

    def _words(self, text: str) -> str:
        return words(text, self._special)

    def _either(self, bodies: Sequence[str]) -> str:
        return bodies[0] if len(bodies) == 1 else f"({' | '.join(self._rule(body) for body in bodies)})"

    def _any_of(self, ends: Ends) -> str:
        return self._either([self._words(end) for end in ends]) if ends else ""

    def _plain(self, text: str) -> bool:
        return not any(token in text for token in self._special)

    # --- free text -----------------------------------------------------------------------------

    def _free(self, one: Format, ends: Ends) -> str:
        del one
        if ends is None:
            return FREE
        if not ends or not all(ends):
            raise UnsupportedConstraint("it enforces free text only where the end of a tag or of the answer ends it.")
        names = []
        for end in ends:
            names.append(f"free_{len(self._rules)}")
            self._rules += free_until(names[-1], end, self._special)
        return f"({' | '.join(names)})"

    def _triggered(self, one: Format, ends: Ends) -> str:
        tags = [self._tag(tag, ()) for tag in one["tags"]]
        first = self._either(tags)
        if one.get("stop_after_first") and one.get("at_least_one"):
            return f"{first} {self._any_of(ends)}"
        parts = self._either([self._after_text(tag, one["triggers"]) for tag in one["tags"]])
        rest = self._free(one, ends)
        if one.get("stop_after_first"):
            return f"({self._rule(rest)} | {self._rule(f'{parts} {self._any_of(ends)}')})"
        return f"{first if one.get('at_least_one') else ''} ({parts})* {rest}"

    def _after_text(self, tag: Format, triggers: Sequence[str]) -> str:
        """A tag after free text, which continues up to its trigger."""
        trigger = next(each for each in triggers if tag["begin"].startswith(each))
        name = f"head_{len(self._rules)}"
        self._rules += free_until(name, trigger, self._special)
        return f"{name} {self._tag({**tag, 'begin': tag['begin'][len(trigger) :]}, ())}"

    # --- combinations --------------------------------------------------------------------------

    def _sequence(self, one: Format, ends: Ends) -> str:
        *before, last = one["elements"]
        return " ".join([*(self._of(each, ()) for each in before), self._of(last, ends)])

    def _tag(self, one: Format, ends: Ends) -> str:
        begin, end = one["begin"], one["end"]
        if isinstance(begin, dict) or isinstance(end, dict):
            raise UnsupportedConstraint("it takes `begin` and `end` of tags as texts, not as tokens.")
        content = self._of(one["content"], [end] if isinstance(end, str) else end)
        return f"{self._words(begin)} {content} {self._any_of(ends)}"

    def _separated(self, one: Format, ends: Ends) -> str:
        tag = self._either([self._of(each, ()) for each in one["tags"]])
        more = "" if one.get("stop_after_first") else f" ({self._words(one['separator'])} {tag})*"
        return f"({tag}{more}){'' if one.get('at_least_one') else '?'} {self._any_of(ends)}"

    def _repeated(self, one: Format, ends: Ends) -> str:
        return f"({self._of(one['content'], ())}){_times(one)} {self._any_of(ends)}"

    # --- regexes -------------------------------------------------------------------------------

    def _term(self, pattern: str, ends: Ends) -> str:
        """A regex, merged into one terminal with the texts that may follow."""
        if ends is None:
            return f"/{pattern}/"
        if not ends or not all(ends):
            raise UnsupportedConstraint("it enforces a regex only at the end of a tag or of the answer.")
        if all(map(self._plain, ends)):
            return f"/(?:{pattern})(?:{'|'.join(map(_exactly, ends))})/"
        if all(end.startswith(tuple(self._special)) for end in ends):
            return f"/{pattern}/ {self._any_of(ends)}"
        raise UnsupportedConstraint(
            "it enforces a regex only before texts that special tokens begin, or that have none."
        )

    def _regular(self, one: Format) -> str | None:
        """The regex of a format; None if the format is not regular."""
        kind = one["type"]
        if kind == "regex":
            return portable(one["pattern"])
        if kind == "const_string":
            return _exactly(one["value"]) if self._plain(one["value"]) else None
        if kind == "tag":
            return self._regular_tag(one)
        if kind in ("sequence", "or"):
            parts = [self._regular(each) for each in one["elements"]]
            between = "" if kind == "sequence" else "|"
            return None if None in parts else between.join(f"(?:{part})" for part in parts)
        if kind in (*TIMES, "repeat"):
            part = self._regular(one["content"])
            return None if part is None else f"(?:{part}){_times(one)}"
        return None

    def _regular_tag(self, one: Format) -> str | None:
        begin, end = one["begin"], [one["end"]] if isinstance(one["end"], str) else one["end"]
        content = self._regular(one["content"])
        if content is None or not isinstance(begin, str) or isinstance(end, dict):
            return None
        if not all(map(self._plain, (begin, *end))):
            return None
        return f"{_exactly(begin)}(?:{content})(?:{'|'.join(map(_exactly, end))})"


def _exactly(text: str) -> str:
    """A regex that matches exactly one text."""
    return portable(re.escape(text))


def _has_regex(one: Format) -> bool:
    """Whether a format is a regex or contains one."""
    return one["type"] == "regex" or any(map(_has_regex, children(one)))


def _times(one: Format) -> str:
    """Minimum and maximum repetitions of a format's content."""
    if one["type"] != "repeat":
        return TIMES[one["type"]]
    least, most = one["min"], one["max"]
    if least < 0 or (most != -1 and most < least):
        raise BadRequest(f"`min` and `max` of a repeat must be in order, got {least} and {most}.", PARAM)
    if max(least, most) > MAX_TIMES:
        raise UnsupportedConstraint(f"it repeats formats {MAX_TIMES} times at most.")
    return f"{{{least},{'' if most == -1 else most}}}"
