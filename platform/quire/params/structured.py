"""Constraints on the output: vLLM's `StructuredOutputsParams`, and the `StructuredSpec` that the engine compiles.

Back ends of plugins interpret the source and decide whether it is valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import BadRequest

PARAM = "structured_outputs"
MAX_SOURCE = 1 << 18
"""Maximum number of characters of a constraint's source."""
MAX_AFTER = 256
"""Maximum number of characters of the text after which a constraint begins."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of `StructuredOutputsParams`, of which exactly one must be set."""


@dataclass(frozen=True, kw_only=True)
class StructuredSpec:
    """A constraint on the output. Equal constraints are compiled once.

    kind: the format of `source`:

    * json_schema: a JSON schema; json_object: empty; regex: matches the whole answer; choice: a JSON list of texts
    * grammar: Lark, or EBNF with `::=`
    * structural_tag: JSON; free text in which each "begin" starts a constrained part:
      {"structures": [{"begin", "schema", "end"}], "triggers": [text]}
    * calls: JSON; a number of values, each in the form of one of the tags:
      {"tags": [{"begin", "schema", "end"}], "at_least": n, "at_most": n or null, "separator": text, "first": text,
      "last": text, "lead": {"begin", "end"}}. `first` and `last` surround all values; a text between the delimiters
      `lead` may precede them. A tag may have "separators", the texts between items and after keys in its JSON, e.g.
      [", ", ": "], without other whitespace if the back end can exclude it. For errors about its schema, a tag may
      have "owner", the name of its tool, and "param", the request field that contains it.
    * any other kind that a plugin compiles

    backend: the back end that must compile it, None = the server's choice. after: the constraint begins after the first
    occurrence of this text. any_whitespace: whether JSON may have whitespace between its parts, a space or an indented
    new line, bounded where a model could write it without end; whitespace_pattern: a regex of the whitespace allowed
    instead. additional_properties: False = objects may only have the properties in their schema, unless the schema says
    otherwise. param: the request field that the constraint comes from, which errors name.
    """

    kind: str
    source: str
    backend: str | None = None
    after: str | None = None
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    additional_properties: bool = True
    param: str = field(default=PARAM, compare=False)

    def __post_init__(self) -> None:
        if len(self.source) > MAX_SOURCE:
            raise BadRequest(
                f"A constraint of kind {self.kind} may have at most {MAX_SOURCE} characters, got {len(self.source)}.",
                self.param,
            )
        if self.after is not None and not 0 < len(self.after) <= MAX_AFTER:
            raise BadRequest(f"The text after which a constraint begins has 1 to {MAX_AFTER} characters.", self.param)
        if self.kind in ("regex", "grammar") and not self.source:
            raise BadRequest(f"`{self.param}`: a constraint of kind {self.kind} must not be empty.", self.param)
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"A constraint of kind {self.kind} is no text: {error}.", self.param) from error
        if "\0" in self.source and self.kind == "regex":
            raise BadRequest(f"`{self.param}`: a regex must not have the character NUL.", self.param)


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """A constraint in vLLM's format; exactly one of json, regex, choice, grammar, json_object, structural_tag.

    json, structural_tag: text or objects. backend: the back end that must compile it. disable_fallback has no
    effect: a named back end is the only one that is tried.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in self._given().items() if value is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise BadRequest(f"`{PARAM}` takes exactly one constraint of {', '.join(KINDS)}; got {got}.", PARAM)
        if self.choice is not None and (isinstance(self.choice, str) or not self.choice):
            raise BadRequest(f"`{PARAM}.choice` must not be empty: it is a list of texts.", PARAM)

    def _given(self) -> dict[str, Any]:
        return {
            "json": self.json,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "json_object": self.json_object or None,
            "structural_tag": self.structural_tag,
        }

    def structured(self, after: str | None = None, param: str = PARAM) -> StructuredSpec:
        """The constraint for the engine; `after`, `param`: as there. Raises BadRequest for what is not JSON."""
        ((kind, value),) = ((name, value) for name, value in self._given().items() if value is not None)
        if kind == "json_object":
            value = ""
        elif kind == "choice":
            value = as_json(list(value), param)
        elif not isinstance(value, str):
            value = as_json(value, param)
        return StructuredSpec(
            kind="json_schema" if kind == "json" else kind,
            source=value,
            backend=self.backend,
            after=after,
            any_whitespace=not self.disable_any_whitespace,
            whitespace_pattern=self.whitespace_pattern,
            additional_properties=not self.disable_additional_properties,
            param=param,
        )


GuidedDecodingParams = StructuredOutputsParams
"""The earlier name of the class in vLLM."""


def as_json(value: Any, param: str = PARAM) -> str:
    """A value as JSON text. Raises BadRequest if JSON cannot represent it, or if it nests too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"`{param}` cannot be written as JSON: {error}.", param) from error
