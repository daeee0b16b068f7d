"""Reads the text of a custom tool's call out of the JSON arguments of the function, while they are generated."""

from __future__ import annotations

import json
import re

from quire_apis.responses.messages import CUSTOM_INPUT

_BEGIN = re.compile(r'\s*\{\s*"' + CUSTOM_INPUT + r'"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = f"[dD][89abAB]{_HEX}{{2}}", f"[dD][c-fC-F]{_HEX}{{2}}"
_COMPLETE = re.compile(rf'(?:[^"\\]|\\[^u]|\\u(?!{_HIGH}){_HEX}{{4}}|\\u{_HIGH}\\u{_LOW})*')
"""The characters and escapes of a JSON string that are whole: no escape, and no pair of surrogates, is cut."""


class CustomInput:
    """The text so far. `push` takes the next part of the arguments; `end` returns what is left."""

    def __init__(self) -> None:
        self.text = ""
        self._arguments = ""
        self._read_to: int | None = None
        self._is_broken = False

    def push(self, arguments: str) -> str:
        """The text that the next part of the arguments adds."""
        self._arguments += arguments
        if self._is_broken:
            return ""
        if self._read_to is None:
            begin = _BEGIN.match(self._arguments)
            if begin is None:
                return ""
            self._read_to = begin.end()
        found = _COMPLETE.match(self._arguments, self._read_to)
        if found is None or found.end() == self._read_to:
            return ""
        try:
            added = _valid(json.loads(f'"{found.group()}"', strict=False))
        except ValueError:  # a wrong escape: `end` returns the arguments as they are
            self._is_broken = True
            return ""
        self._read_to = found.end()
        self.text += added
        return added

    def end(self) -> str:
        """The text that was not returned yet; all arguments if they are not what the tool takes."""
        try:
            value = json.loads(self._arguments, strict=False)
        except ValueError:
            value = None
        whole = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        if not isinstance(whole, str):
            whole = self.text or self._arguments
        whole = _valid(whole)
        if not whole.startswith(self.text):  # the key came twice; what was said stays
            return ""
        added = whole.removeprefix(self.text)
        self.text = whole
        return added


def _valid(text: str) -> str:
    """The text with U+FFFD in place of surrogates that are not part of a pair, which UTF-8 cannot say."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
