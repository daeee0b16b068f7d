"""What a request may ask of the form of its answer, in the spelling of vLLM and as the engine sees it.

It knows no grammar language: what a source means, and whether it is right, back ends say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import BadRequest

PARAM = "structured_outputs"
MAX_SOURCE = 1 << 18
"""Characters of a constraint's source."""
MAX_AFTER = 256
"""Characters of the text after which a constraint begins."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of which `StructuredOutputsParams` has exactly one."""


@dataclass(frozen=True, kw_only=True)
class Structured:
    """A constraint on the output: equal ones are compiled once.

    kind, source: json_schema (a JSON schema), json_object (""), regex (all of the answer matches), choice (a JSON list
    of texts), grammar (Lark, or EBNF with `::=`), structural_tag (JSON: free text in which some texts begin constrained
    parts: {"structures": [{"begin", "schema", "end"}], "triggers": [text]}), calls (JSON: {"tags": [{"begin", "schema",
    "end"}], "at_least": n, "at_most": n or null, "separator": text, "first": text, "last": text, "lead": {"begin",
    "end"}}: so many values, each that of a tag, and nothing else but what stands before and after all of them, and a
    text between the delimiters `lead` that may come first), or what a plugin brings. A tag may also have "separators",
    what its JSON has between values and after keys, e.g. [", ", ": "], without other whitespace if a back end can keep
    it out; and for errors about its schema "owner", whose it is, and "param", the field that it stands in.
    backend: who must compile it, None = as the server is set. after: a text before whose end nothing is constrained.
    any_whitespace: whether JSON may have whitespace between its parts, a space or an indented new line, bounded where
    models could write it without end; whitespace_pattern: a regex of what may be instead.
    additional_properties: False = objects whose schema does not say may have no other than their properties.
    param: the field of the request that asked, which errors name.
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
    """A constraint in vLLM's words; exactly one of json, regex, choice, grammar, json_object, structural_tag.

    json, structural_tag: as text or as objects. backend: which back end must do it. disable_fallback has no
    effect: a back end that is named is the only one asked.
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

    def structured(self, after: str | None = None, param: str = PARAM) -> Structured:
        """The same for the engine. Raises BadRequest for what no back end could take. param: see `Structured`."""
        ((kind, value),) = ((name, value) for name, value in self._given().items() if value is not None)
        if kind == "json_object":
            value = ""
        elif kind == "choice":
            value = as_json(list(value), param)
        elif not isinstance(value, str):
            value = as_json(value, param)
        return Structured(
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
"""The name that vLLM had for it before."""


def as_json(value: Any, param: str = PARAM) -> str:
    """A value as JSON. Raises BadRequest for one that is none, or nests too deeply to be written."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"`{param}` cannot be written as JSON: {error}.", param) from error
