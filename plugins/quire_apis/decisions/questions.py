"""The types of questions: which options each has, how it is asked, and the answer that probabilities make.

choice     one of up to 26 options, which the model names by a letter
noul       yes or no (the name is that of the API)
score      a level of an ordered scale, which the model names by its number
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.plugin import BadRequest
from quire_apis.decisions.schemas import QuestionSpec

MAX_LEVELS = 10
MAX_OPTIONS = 26
MAX_NAME = 1000
"""Characters of an option's name, which comes back in the answer."""


@dataclass(frozen=True, slots=True)
class AnswerOption:
    """What may be answered. labels: ways to write it, each of which may be the first token of a reply."""

    name: str
    labels: Sequence[str]
    description: str | None = None


@dataclass(frozen=True, slots=True)
class TypedQuestion:
    """A question with its options in the order of the request. request: the sentence that asks for a label."""

    id: str
    type: str
    instructions: str
    options: Sequence[AnswerOption]
    request: str

    def text(self) -> str:
        """The question as the model reads it."""
        lines = [self.instructions] if self.instructions else []
        for option in self.options:
            if self.type != "noul":
                about = f": {option.description}" if option.description else ""
                lines.append(f"{option.labels[0]}) {option.name}{about}")
            elif option.description:
                lines.append(f"{option.name}: {option.description}")
        return "\n".join([*lines, self.request])

    def answer(self, shares: Sequence[float], label_mass: float) -> dict[str, Any]:
        """The answer. shares: of the options, 1 in all. label_mass: probability of all labels in the vocabulary."""
        best = max(range(len(shares)), key=shares.__getitem__)
        found: dict[str, Any] = {"type": self.type}
        if self.type == "choice":
            found["choice"] = self.options[best].name
        elif self.type == "noul":
            found["noul"] = shares[0]
        else:
            found["score"] = sum(level * share for level, share in enumerate(shares))
            found["legend"] = {str(level): option.name for level, option in enumerate(self.options)}
        names = [option.labels[0] if self.type == "score" else option.name for option in self.options]
        found["probabilities"] = dict(zip(names, shares, strict=True))
        found["confidence"] = shares[best] * label_mass
        return found


def typed_question(question_id: str, spec: QuestionSpec) -> TypedQuestion:
    """The question of a request. Raises `BadRequest` that names it."""
    param = f"questions.{question_id}"
    if not question_id:
        raise BadRequest("The id of a question must not be empty.", "questions")
    if spec.type not in _TYPES:
        raise BadRequest(f"`{param}.type` must be one of {', '.join(_TYPES)}; got {spec.type!r:.80}.", f"{param}.type")
    make, request = _TYPES[spec.type]
    options = make(spec.criteria, f"{param}.criteria")
    return TypedQuestion(question_id, spec.type, spec.instructions, options, request)


def _choice(criteria: Any, param: str) -> list[AnswerOption]:
    if not isinstance(criteria, Mapping) or not 1 <= len(criteria) <= MAX_OPTIONS:
        raise BadRequest(f"`{param}` of a choice must map 1 to {MAX_OPTIONS} names to descriptions or null.", param)
    return [
        AnswerOption(_name(name, param), (label,), _described(about, param))
        for label, (name, about) in zip(string.ascii_uppercase, criteria.items(), strict=False)
    ]


def _noul(criteria: Any, param: str) -> list[AnswerOption]:
    given = {} if criteria is None else criteria
    if not isinstance(given, Mapping) or not given.keys() <= {"true", "false"}:
        raise BadRequest(f"`{param}` of a noul must be null, or an object with `true` and `false`.", param)
    return [
        AnswerOption("yes", ("yes", "Yes"), _described(given.get("true"), param)),
        AnswerOption("no", ("no", "No"), _described(given.get("false"), param)),
    ]


def _score(criteria: Any, param: str) -> list[AnswerOption]:
    if not isinstance(criteria, list) or not 2 <= len(criteria) <= MAX_LEVELS:
        raise BadRequest(f"`{param}` of a score must be an ordered list of 2 to {MAX_LEVELS} levels.", param)
    names = [_name(level, param) for level in criteria]
    if len(set(names)) < len(names):
        raise BadRequest(f"`{param}` has a level twice.", param)
    return [AnswerOption(name, (str(level),)) for level, name in enumerate(names)]


_TYPES: Mapping[str, tuple[Callable[[Any, str], list[AnswerOption]], str]] = {
    "choice": (_choice, "Reply with the letter of one option and nothing else."),
    "noul": (_noul, "Reply with yes or no and nothing else."),
    "score": (_score, "Reply with the number of one level and nothing else."),
}


def _name(value: Any, param: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
        raise BadRequest(f"`{param}`: a name must be a text of 1 to {MAX_NAME} characters; got {value!r:.80}.", param)
    return value


def _described(value: Any, param: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"`{param}`: a description must be a text or null; got {value!r:.80}.", param)
    return value
