"""What tools can do: skills whose tools do something, and the list of all skills."""

from __future__ import annotations

from collections.abc import Iterable

from data.tools import tool_words as words
from data.tools.lookup_skills import (
    ADD,
    CALCULATE,
    CONVERT,
    FACT,
    FERRY,
    MULTIPLY,
    PARCEL,
    PHONE,
    PRICE,
    STOCK,
    SUBTRACT,
    TIME,
    TRANSLATE,
    WEATHER,
)
from data.tools.skill_parts import SWITCH, Gift, Skill, Slot, drawn

REMIND = Skill(
    verbs="set|create|add|make|new",
    nouns="reminder|alarm|task|todo|note",
    about="Set a reminder.|Reminds the user of something.|Remember a task for a time.",
    slots={
        "task": Slot(
            names="text|task|title|what|message",
            about="What to remember.|The task.",
            draw=lambda rng: rng.choice(words.TASKS),
        ),
        "time": Slot(names="time|at|when|due", about="When to remind.|The time.", draw=words.clock),
    },
    asks="Remind me to {task} at {time}.|At {time} I have to {task}. Remind me.|Set a reminder at {time}: {task}."
    "|Please remind me at {time} to {task}.|Don't let me forget to {task} at {time}.",
    gives={"state": drawn("status|state|result", "set|saved|done|created|stored|planned")},
    answer="The reminder to {task} at {time} is {state}.",
)
MESSAGE = Skill(
    verbs="send|write|post|deliver",
    nouns="message|text message|sms|mail|note",
    about="Send a message to a person.|Writes to somebody.|Sends a text.",
    slots={
        "person": Slot(
            names="to|recipient|person|name|contact", about="Who gets it.|The recipient.", draw=words.person
        ),
        "text": Slot(
            names="text|message|body|content",
            about="What to send.|The message.",
            draw=lambda rng: rng.choice(words.NEWS),
        ),
    },
    asks="Tell {person} that {text}.|Send {person} a message: {text}.|Write to {person} that {text}."
    "|Let {person} know that {text}.|Text {person}: {text}.",
    gives={"state": drawn("status|state|result", "sent|delivered|on its way|waiting|read")},
    answer="The message to {person} is {state}.",
)
LIGHT = Skill(
    verbs="set|switch|turn|control",
    nouns="light|lamp|lights|room light",
    about="Switch the light of a room.|Turns lamps on and off.|Control the lights.",
    slots={
        "room": Slot(
            names="room|where|place|lamp",
            about="The room.|Where the lamp is.",
            draw=lambda rng: rng.choice(words.ROOMS),
        ),
        "state": SWITCH,
    },
    asks="Turn {state} the light in the {room}.|Switch the light in the {room} {state}."
    "|Light {state} in the {room}, please."
    "|Turn the lamp in the {room} {state}.|I want the light in the {room} {state}.",
    again="And in the {room} {state}.|Now {state} in the {room}.",
    both="Turn {state} the light in the {room} and in the {other}."
    "|Turn the lights in the {room} and the {other} {state}.",
    gives={"state_now": drawn("status|result|message", "done|changed|confirmed|accepted")},
    answer="The light in the {room} is {state}: {state_now}.",
)
TABLE = Skill(
    verbs="book|reserve|make|get",
    nouns="table|restaurant|reservation|dinner table",
    about="Book a table in a restaurant.|Reserve a table for some people.|Makes a reservation.",
    slots={
        "place": Slot(names="restaurant|place|name|where", about="The restaurant.|Where to eat.", draw=words.strange),
        "people": Slot(
            names="people|guests|seats|party_size|persons", about="How many people.|Number of guests.", draw=words.few
        ),
        "time": Slot(names="time|at|when|hour", about="When.|The time.", draw=words.clock),
    },
    asks="Book a table for {people} at {place} at {time}.|I need a table for {people} people at {place} at {time}."
    "|Reserve a table at {place} for {people} at {time}.|We are {people} and want to eat at {place} at {time}.",
    gives={"number": Gift(names="code|number|confirmation|id", make=lambda rng, values: words.code(rng))},
    answer="A table for {people} at {place} is booked at {time}: {number}.",
)
ORDER = Skill(
    verbs="order|buy|get|deliver",
    nouns="food|meal|dish|dinner|lunch",
    about="Order something to eat.|Orders dishes from the kitchen.|Food delivery.",
    slots={
        "dish": Slot(names="dish|food|meal|item", about="What to eat.|The dish.", draw=words.dish),
        "count": Slot(names="count|quantity|portions|amount", about="How many.|Portions.", draw=words.few),
    },
    asks="Order {count} portions of {dish}.|We want {count} portions of {dish}.|Bring us {dish}, {count} times."
    "|I would like {count} times {dish}.|Get me {count} portions of {dish}, please.",
    gives={"minutes": Gift(names="minutes|wait|ready_in|eta", make=lambda rng, values: rng.randint(5, 90))},
    answer="{count} portions of {dish} will be ready in {minutes} minutes.",
)

SKILLS = (
    *(WEATHER, TIME, PRICE, STOCK, ADD, SUBTRACT, MULTIPLY, CONVERT, FERRY, TRANSLATE),
    *(REMIND, MESSAGE, PHONE, LIGHT, TABLE, PARCEL, FACT, ORDER, CALCULATE),
)


def overlap(skills: Iterable[Skill]) -> bool:
    """Whether two of the skills can do the same."""
    chosen = list(skills)
    return CALCULATE in chosen and any(skill in chosen for skill in (ADD, SUBTRACT, MULTIPLY))
