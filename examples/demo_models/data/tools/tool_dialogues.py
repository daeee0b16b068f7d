"""The generator of the demo with tools: an endless, seeded stream of dialogues with correct answers.

`training_dialogues(seed)` never asks what is held out and never offers a tool whose name is;
`held_out_questions(count)` asks only that, of tools with such names alone.

    python -m data.tools.tool_dialogues      # print a few of both
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from data.chat.reply_styles import capitalise, is_held_out
from data.tools.json_forms import extraction
from data.tools.offered_tools import Call, Tool, call_of, draw_tools, make_tool, wordings
from data.tools.skills import SKILLS, overlap
from data.tools.tool_phrases import (
    ABOUT_ME,
    ERRORS,
    FILL,
    GREETINGS,
    NO_TOOL,
    OFF_TOPIC,
    OPENERS,
    SYSTEM,
    THANKS,
    WHICH_TOOLS,
    WHO,
)

Message = dict[str, Any]

FAMILIES = ("call", "parallel", "result", "refusal", "talk", "json")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A held-out question: the tools on offer, the messages up to it, and the only correct answer to them."""

    family: str
    keys: tuple[str, ...]
    tools: list[dict[str, Any]]
    messages: list[Message]
    answer: Message


@dataclass(kw_only=True)
class Dialogue:
    """A dialogue while it is written. held_out: whether what comes next is on that side of the split."""

    rng: random.Random
    tools: tuple[Tool, ...]
    messages: list[Message] = field(default_factory=list)
    held_out: bool = False
    last: Tool | None = None

    def call(self, tool: Tool, wording: str) -> Call:
        """A call on the wanted side of the split."""
        while is_held_out((call := call_of(self.rng, tool, wording)).key) != self.held_out:
            pass
        return call

    def ask(self, text: str) -> None:
        """What the user says, with what people add or leave out."""
        if self.rng.random() < 0.12:
            text = self.rng.choice(OPENERS) + text
        if self.rng.random() < 0.12:
            text = text.rstrip("?.!") or text
        self.messages.append({"role": "user", "content": text})

    def say(self, text: str) -> None:
        """What the model says."""
        self.messages.append({"role": "assistant", "content": text})


def _single(dialogue: Dialogue) -> list[Call]:
    rng = dialogue.rng
    tool = rng.choice(dialogue.tools)
    again = wordings(tool, tool.skill.again) if tool is dialogue.last else ()
    asks = again if again and rng.random() < 0.7 else wordings(tool, tool.skill.asks)
    wording = rng.choice(asks)
    call = dialogue.call(tool, wording)
    dialogue.ask(capitalise(wording.format(**call.values)))
    return [call]


def _both(dialogue: Dialogue, tool: Tool) -> list[Call]:
    """One tool twice, in one breath."""
    wording = dialogue.rng.choice(wordings(tool, tool.skill.both))
    first = dialogue.call(tool, wording)
    role = next(iter(tool.skill.slots))
    while True:
        second = dialogue.call(tool, wording)
        values = {**first.values, role: second.values[role]}
        second = Call(tool=tool, values=values, given=second.given)
        if values[role] != first.values[role] and is_held_out(second.key) == dialogue.held_out:
            break
        first = dialogue.call(tool, wording)
    dialogue.ask(capitalise(wording.format(**first.values, other=values[role])))
    return [first, second]


def _parallel(dialogue: Dialogue) -> list[Call]:
    """Two or three calls, of one tool or several."""
    rng = dialogue.rng
    twice = [tool for tool in dialogue.tools if wordings(tool, tool.skill.both)]
    if twice and rng.random() < 0.5:
        return _both(dialogue, rng.choice(twice))
    chosen = [rng.choice(dialogue.tools) for _ in range(rng.choices((2, 3), (80, 20))[0])]
    said = [(tool, rng.choice(wordings(tool, tool.skill.asks))) for tool in chosen]
    calls = [dialogue.call(tool, wording) for tool, wording in said]
    texts = [capitalise(wording.format(**call.values)) for (_, wording), call in zip(said, calls, strict=True)]
    joint = rng.choice((" ", " ", " And: ", " Also: ", "\n"))
    dialogue.ask(joint.join(texts))
    return calls


def _refusal(dialogue: Dialogue) -> tuple[str, ...]:
    """A question that no tool fits; gives its key."""
    rng = dialogue.rng
    offered = [tool.skill for tool in dialogue.tools]
    missing = [skill for skill in SKILLS if skill not in offered and not overlap([*offered, skill])]
    if rng.random() < 0.15:
        text = rng.choice(OFF_TOPIC)
        keys: tuple[str, ...] = ()
    else:
        absent = make_tool(rng, rng.choice(missing), new=False)
        wording = rng.choice(wordings(absent, absent.skill.asks))
        call = dialogue.call(absent, wording)
        text, keys = capitalise(wording.format(**call.values)), (call.key,)
    dialogue.ask(text)
    dialogue.say(NO_TOOL)
    return keys


def _talk(dialogue: Dialogue) -> None:
    rng = dialogue.rng
    names = [tool.name for tool in dialogue.tools]
    listed = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part) if names else ""
    tools = f"I have {'this tool' if len(names) == 1 else 'these tools'}: {listed}." if names else "I have no tools."
    small = ((GREETINGS, "Hello! What can I do for you?"), (THANKS, "You are welcome!"), (WHO, ABOUT_ME))
    # Only the names of tools can be new.
    questions, answer = (WHICH_TOOLS, tools) if dialogue.held_out or rng.random() < 0.4 else rng.choice(small)
    dialogue.messages.append({"role": "user", "content": rng.choice(questions)})
    dialogue.say(answer)


def _make_calls(dialogue: Dialogue, calls: list[Call]) -> None:
    start = len(dialogue.messages)
    made = [{"id": f"call_{start}_{i}", **call.message()} for i, call in enumerate(calls)]
    dialogue.messages.append({"role": "assistant", "content": "", "tool_calls": made})
    dialogue.last = calls[0].tool if len(calls) == 1 else None


def _results(dialogue: Dialogue, calls: list[Call]) -> str:
    """What the tools return, as messages; gives the answer to it."""
    rng, answers = dialogue.rng, []
    made = dialogue.messages[-1]["tool_calls"]
    for call, message in zip(calls, made, strict=True):
        if rng.random() < 0.04:
            error = rng.choice(ERRORS)
            result, answer = json.dumps({"error": error}), f"That did not work: {error}."
        else:
            result, answer = call.result(rng), call.answer()
        dialogue.messages.append({"role": "tool", "tool_call_id": message["id"], "content": result})
        answers.append(answer)
    return " ".join(answers)


def _turn(dialogue: Dialogue, family: str) -> tuple[str, ...]:
    """A question and its answer of a family of which a dialogue has tools; gives what decides the split."""
    if family == "talk":
        _talk(dialogue)
        return ()
    if family == "refusal":
        return _refusal(dialogue)
    parallel = family == "parallel" or (family == "result" and dialogue.rng.random() < 0.25)
    calls = _parallel(dialogue) if parallel else _single(dialogue)
    _make_calls(dialogue, calls)
    if family == "result":
        dialogue.say(_results(dialogue, calls))
    return tuple(call.key for call in calls)


def _with_tools(rng: random.Random, *, new: bool, short: bool = False) -> Dialogue:
    """A dialogue that has not begun, with one to four tools on offer, or now and then none; short: with two at most."""
    weights = (3, 60, 37, 0, 0) if short else (3, 30, 35, 22, 10)
    dialogue = Dialogue(rng=rng, tools=draw_tools(rng, rng.choices((0, 1, 2, 3, 4), weights)[0], new=new))
    if rng.random() < 0.35:
        dialogue.messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    return dialogue


def _tool_dialogue(rng: random.Random, *, short: bool) -> tuple[list[Message], list[dict[str, Any]]]:
    """Some turns, each call followed by its result and an answer; short: one turn."""
    dialogue = _with_tools(rng, new=False, short=short)
    for _ in range(1 if short else rng.choices((1, 2, 3, 4), (30, 40, 22, 8))[0]):
        drawn = rng.choices(("result", "parallel", "refusal", "talk"), (58, 20, 15, 7))[0]
        family = drawn if dialogue.tools or drawn == "talk" else "refusal"
        if family != "parallel":
            _turn(dialogue, family)
            continue
        calls = _parallel(dialogue)
        _make_calls(dialogue, calls)
        dialogue.say(_results(dialogue, calls))
    return dialogue.messages, [tool.definition() for tool in dialogue.tools]


def _forms(rng: random.Random, *, held_out: bool, turns: int) -> tuple[list[Message], tuple[str, ...]]:
    """Texts to fill schemas from, which stand in the system message or with each text; and the key of the last text."""
    messages: list[Message] = []
    in_system = rng.random() < 0.5
    for _ in range(1 if in_system else turns):
        while is_held_out((asked := extraction(rng)).key) != held_out:
            pass
        order = f"{rng.choice(FILL)} {json.dumps(asked.schema, ensure_ascii=False)}"
        if in_system:
            opening = f"{rng.choice(SYSTEM)} " if rng.random() < 0.2 else ""
            messages += [{"role": "system", "content": opening + order}, {"role": "user", "content": asked.text}]
        else:
            text = f"{asked.text}\n\n{order}" if rng.random() < 0.5 else f"{order}\n\n{asked.text}"
            messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": json.dumps(asked.filled, ensure_ascii=False)})
    return messages, (asked.key,)


def training_dialogues(seed: int | str, *, short: bool = False) -> Iterator[tuple[list[Message], list[dict[str, Any]]]]:
    """Yield training dialogues with the tools on offer for ever; equal seeds give equal streams.

    short: of one turn, with few tools, to begin with.
    """
    rng = random.Random(f"train:{seed}")
    while True:
        if rng.random() < 0.3:
            yield _forms(rng, held_out=False, turns=1 if short else rng.choice((1, 1, 2)))[0], []
        else:
            yield _tool_dialogue(rng, short=short)


def _held_out(rng: random.Random, family: str) -> Question:
    """A question of a family, behind turns of any kind that are not held out."""
    if family == "json":
        messages, keys = _forms(rng, held_out=True, turns=1)
        return Question(family=family, keys=keys, tools=[], messages=messages[:-1], answer=messages[-1])
    while not (dialogue := _with_tools(rng, new=True)).tools and family != "refusal":
        pass
    for _ in range(rng.choice((0, 0, 1, 2)) if dialogue.tools else 0):
        _turn(dialogue, rng.choice(("result", "result", "refusal", "talk")))
    dialogue.held_out = True
    keys = _turn(dialogue, family)
    tools = [tool.definition() for tool in dialogue.tools]
    return Question(
        family=family, keys=keys, tools=tools, messages=dialogue.messages[:-1], answer=dialogue.messages[-1]
    )


def held_out_questions(count: int, seed: int | str = 0) -> list[Question]:
    """Draw held-out questions, the same number of every family."""
    rng = random.Random(f"held-out:{seed}")
    return [_held_out(rng, family) for family in FAMILIES for _ in range(-(-count // len(FAMILIES)))]


def _show() -> None:
    """Print a few training dialogues and held-out questions."""
    stream = training_dialogues("show")
    for _ in range(8):
        messages, tools = next(stream)
        print("\n".join(json.dumps(one, ensure_ascii=False) for one in [*tools, *messages]), "\n")
    for question in held_out_questions(24):
        last = json.dumps(question.messages[-1]["content"], ensure_ascii=False)
        print(f"[{question.family}] {last} -> {json.dumps(question.answer, ensure_ascii=False)}")


if __name__ == "__main__":
    _show()
