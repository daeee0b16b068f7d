"""Tools as a request offers them: a skill with names, descriptions and lists of values drawn anew each time."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.chat.reply_styles import is_held_out
from data.chat.small_talk import invented_name
from data.tools.skill_parts import Skill, Slot, Value
from data.tools.skills import SKILLS, overlap

JSON_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A slot of a skill with a name. options: the values it takes, from how they are said to how they are written."""

    role: str
    name: str
    schema: Mapping[str, Any]
    options: Mapping[Value, Value] | None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool on offer."""

    skill: Skill
    name: str
    about: str
    parameters: tuple[Parameter, ...]

    @property
    def roles(self) -> frozenset[str]:
        """The slots that it has."""
        return frozenset(parameter.role for parameter in self.parameters)

    def definition(self) -> dict[str, Any]:
        """As a request has it in `tools`."""
        required = [p.name for p in self.parameters if not self.skill.slots[p.role].optional]
        schema = {
            "type": "object",
            "properties": {p.name: dict(p.schema) for p in self.parameters},
            "required": required,
        }
        function = {"name": self.name, "description": self.about, "parameters": schema}
        return {"type": "function", "function": {key: value for key, value in function.items() if value}}

    def arguments(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Of a call, in the order of the parameters; slots without a value are left out."""
        given = [p for p in self.parameters if p.role in values]
        return {p.name: p.options[values[p.role]] if p.options else values[p.role] for p in given}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request for a tool, with what it will give."""

    tool: Tool
    values: Mapping[str, Value]
    given: Mapping[str, Value]

    @property
    def key(self) -> str:
        """What decides whether it is held out: the skill with all values, whatever they are called."""
        said = sorted((role, str(value)) for role, value in self.values.items())
        return f"call:{self.tool.skill.nouns}:{said}"

    def message(self) -> dict[str, Any]:
        """As an assistant message has it in `tool_calls`."""
        return {"type": "function", "function": {"name": self.tool.name, "arguments": self.tool.arguments(self.values)}}

    def result(self, rng: random.Random) -> str:
        """What the tool returns: a JSON object whose fields are named anew."""
        fields = {rng.choice(self.tool.skill.gives[role].names.split("|")): v for role, v in self.given.items()}
        if rng.random() < 0.15:
            fields = {rng.choice(("id", "request", "version")): rng.randrange(1000), **fields}
        return json.dumps(fields, ensure_ascii=False)

    def answer(self) -> str:
        """The sentence that tells the result."""
        return self.tool.skill.answer.format(**{**self.values, **self.given})


def is_new_name(name: str) -> bool:
    """True for names of tools that training never uses."""
    return is_held_out(f"tool:{name.lower()}")


def _styled(rng: random.Random, text: str) -> str:
    """Words joined as programmers do."""
    parts = text.split()
    style = rng.choices(("snake", "camel", "kebab", "pascal"), (70, 15, 8, 7))[0]
    if style in ("camel", "pascal"):
        joined = "".join(part.capitalize() for part in parts)
        return joined if style == "pascal" else joined[:1].lower() + joined[1:]
    return ("_" if style == "snake" else "-").join(parts)


def _tool_name(rng: random.Random, skill: Skill, *, meaningless: bool) -> str:
    if meaningless:
        return rng.choice((f"tool_{rng.randrange(100)}", f"{invented_name(rng).lower()}", f"fn{rng.randrange(1000)}"))
    verb, noun = rng.choice(skill.verbs.split("|")), rng.choice(skill.nouns.split("|"))
    text = rng.choices((f"{verb} {noun}", noun, f"{noun} {verb}"), (70, 20, 10))[0]
    return _styled(rng, f"{invented_name(rng).lower()} {text}" if rng.random() < 0.1 else text)


def _options(rng: random.Random, slot: Slot) -> tuple[Mapping[Value, Value] | None, str]:
    """The values of a slot with few values, some of them left out, in any order; and the type in the schema."""
    if slot.draw is not None:
        kind = JSON_TYPES[type(slot.draw(rng))]
        return None, "number" if kind == "integer" and rng.random() < 0.3 else kind
    said, column = slot.written[0], rng.choice(slot.written)
    count = len(column) if len(column) < 3 else rng.randint(3, len(column))
    return {said[i]: column[i] for i in rng.sample(range(len(column)), count)}, JSON_TYPES[type(column[0])]


def _parameter(rng: random.Random, role: str, slot: Slot, taken: set[str]) -> Parameter:
    meaningless = rng.random() < 0.06
    name = rng.choice([n for n in slot.names.split("|") if n not in taken])
    if meaningless:
        name = rng.choice([n for n in ("arg", "p", "input", "q", f"arg{rng.randrange(9)}", "v") if n not in taken])
    taken.add(name)
    options, kind = _options(rng, slot)
    schema: dict[str, Any] = {"type": kind}
    if options and kind == "string":
        schema["enum"] = list(options.values())
    if meaningless or rng.random() < 0.4:
        schema["description"] = rng.choice(slot.about.split("|"))
    if rng.random() < 0.05:
        schema = {"title": name.replace("_", " ").title(), **schema}
    return Parameter(role=role, name=name, schema=schema, options=options)


def make_tool(rng: random.Random, skill: Skill, *, new: bool) -> Tool:
    """A tool for the skill; new: with a name that training never uses."""
    while True:
        meaningless = rng.random() < 0.08
        name = _tool_name(rng, skill, meaningless=meaningless)
        if is_new_name(name) == new:
            break
    about = rng.choice(skill.about.split("|")) if meaningless or rng.random() < 0.85 else ""
    roles = [role for role, slot in skill.slots.items() if not slot.optional or rng.random() < 0.5]
    if rng.random() < 0.3:
        rng.shuffle(roles)
    taken: set[str] = set()
    parameters = tuple(_parameter(rng, role, skill.slots[role], taken) for role in roles)
    return Tool(skill=skill, name=name, about=about, parameters=parameters)


def draw_tools(rng: random.Random, count: int, *, new: bool) -> tuple[Tool, ...]:
    """So many tools of different skills and names."""
    while True:
        skills = rng.sample(SKILLS, count)
        tools = tuple(make_tool(rng, skill, new=new) for skill in skills)
        if len({tool.name for tool in tools}) == count and not overlap(skills):
            return tools


def call_of(rng: random.Random, tool: Tool, ask: str) -> Call:
    """Values for what the wording `ask` mentions, as the tool takes them."""
    values: dict[str, Value] = {}
    for parameter in tool.parameters:
        if f"{{{parameter.role}}}" not in ask:
            continue
        draw = tool.skill.slots[parameter.role].draw
        taken = set(values.values())
        while (value := rng.choice(list(parameter.options)) if parameter.options else draw(rng)) in taken:  # type: ignore[misc]
            pass
        values[parameter.role] = value
    given = {role: gift.make(rng, values) for role, gift in tool.skill.gives.items()}
    return Call(tool=tool, values=values, given=given)


def wordings(tool: Tool, text: str) -> Sequence[str]:
    """Wordings that name every required parameter of the tool, and no parameter that it lacks."""
    slots = tool.skill.slots
    required = {role for role, slot in slots.items() if not slot.optional}
    fitting = []
    for ask in text.split("|") if text else ():
        named = {role for role in slots if f"{{{role}}}" in ask}
        if required <= named <= tool.roles:
            fitting.append(ask)
    return fitting
