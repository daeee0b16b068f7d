"""Texts that tell facts, JSON schemas that ask for some of them, and the objects that fill the schemas."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from data.tools import tool_words as words
from data.tools.offered_tools import JSON_TYPES

Filling = str | int | bool | list[str]


@dataclass(frozen=True, kw_only=True)
class Blank:
    """A field of a form. says: sentences that tell its value, by the value where other words tell it."""

    names: str
    draw: Callable[[random.Random], Filling]
    says: str | Mapping[Filling, str]
    options: str = ""
    """The values, if a schema lists them."""

    def sentence(self, rng: random.Random, value: Filling) -> str:
        """A sentence that tells the value."""
        says = self.says if isinstance(self.says, str) else self.says[value]  # type: ignore[index]
        return rng.choice(says.split("|")).replace("{}", _spoken(value))


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """A text, a schema, and what fills it."""

    text: str
    schema: dict[str, Any]
    filled: dict[str, Filling]
    key: str


def _spoken(value: Filling) -> str:
    if not isinstance(value, list):
        return str(value)
    return " and ".join(part for part in (", ".join(value[:-1]), value[-1]) if part)


def _some(pool: Callable[[random.Random], str]) -> Callable[[random.Random], Filling]:
    """A list of one to four different words."""
    return lambda rng: list(dict.fromkeys(pool(rng) for _ in range(rng.randint(1, 4))))


def _one_of(options: str) -> Callable[[random.Random], Filling]:
    return lambda rng: rng.choice(options.split("|"))


def _coin(rng: random.Random) -> Filling:
    return rng.random() < 0.5


JOBS = "baker|teacher|nurse|sailor|painter|farmer|pilot|tailor|cook|doctor|gardener|carpenter|lawyer|plumber|singer"
COLOURS = "red|green|blue|white|black|yellow|purple|orange|brown|grey"
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
EVENTS = (
    "chess evening|summer party|book club|wine tasting|yoga class|city tour|jazz concert|film night|flea market"
    "|dance course"
)
VEHICLES = "train|bus|plane|boat|car"
FEELINGS: Mapping[Filling, str] = {
    "positive": "I love it.|It is great.|I am very happy with it.|Wonderful!|It works very well.|What a good buy!",
    "negative": "I hate it.|It is awful.|I am very unhappy with it.|Terrible!|It broke at once.|What a bad buy!",
    "neutral": "It is okay.|It is neither good nor bad.|Nothing special.|It does what it should.|Average.",
}

# The first field of a form opens the text, so that the others can refer to it.
FORMS: Mapping[str, Mapping[str, Blank]] = {
    "person": {
        "name": Blank(
            names="name|person|first_name|who",
            draw=words.person,
            says="This is {}.|Let me tell you about {}.|Meet {}.|{} is new here.|My friend is called {}.",
        ),
        "age": Blank(
            names="age|years|age_in_years",
            draw=lambda rng: rng.randint(1, 99),
            says="They are {} years old.|Age: {}.|They turned {} this year.|They are {}.",
        ),
        "city": Blank(
            names="city|home|lives_in|residence|town",
            draw=words.place,
            says="They live in {}.|Their home is {}.|They moved to {}.|They have a house in {}.",
        ),
        "job": Blank(
            names="job|profession|occupation|work",
            draw=_one_of(JOBS),
            says="They work as a {}.|By profession they are a {}.|Job: {}.|They earn their money as a {}.",
        ),
        "likes": Blank(
            names="likes|hobbies|interests|favourites",
            draw=_some(_one_of("music|chess|sailing|tennis|cooking|reading|dancing|hiking|films|fishing")),  # type: ignore[arg-type]
            says="They like {}.|In their free time it is {}.|They are fond of {}.|They enjoy {}.",
        ),
        "married": Blank(
            names="married|is_married|has_spouse",
            draw=_coin,
            says={
                True: "They are married.|They have a wife.|They have a husband.",
                False: "They are single.|They are not married.",
            },
        ),
    },
    "order": {
        "item": Blank(
            names="item|product|article|what",
            draw=words.thing,
            says="I want to order the {}.|Order: {}.|Please send me the {}.|I would like to buy the {}.",
        ),
        "count": Blank(
            names="count|quantity|pieces|amount",
            draw=lambda rng: rng.randint(1, 60),
            says="I need {} pieces.|{} pieces, please.|Quantity: {}.|Send {} of them.",
        ),
        "colour": Blank(
            names="colour|color|shade",
            draw=_one_of(COLOURS),
            says="It should be {}.|In {}, please.|Colour: {}.|I want it in {}.",
            options=COLOURS,
        ),
        "city": Blank(
            names="city|ship_to|destination|address",
            draw=words.place,
            says="Ship it to {}.|I live in {}.|Deliver to {}.|It goes to {}.",
        ),
        "express": Blank(
            names="express|urgent|fast|is_express",
            draw=_coin,
            says={
                True: "It is urgent.|Send it by express.|I need it fast.",
                False: "It is not urgent.|No express needed.|There is no hurry.",
            },
        ),
    },
    "event": {
        "title": Blank(
            names="title|event|name|what",
            draw=_one_of(EVENTS),
            says="You are invited to the {}.|The {} takes place again.|Do not miss the {}.|We plan a {}.",
        ),
        "day": Blank(
            names="day|weekday|date|when",
            draw=_one_of(DAYS),
            says="It is on {}.|Come on {}.|Day: {}.|We meet on {}.",
            options=DAYS,
        ),
        "time": Blank(
            names="time|start|starts_at|begin",
            draw=words.clock,
            says="It begins at {}.|Doors open at {}.|Time: {}.|Be there at {}.",
        ),
        "place": Blank(
            names="place|location|venue|where",
            draw=words.place,
            says="It is in {}.|We meet in {}.|Place: {}.|The venue is {}.",
        ),
        "people": Blank(
            names="people|guests|participants|attendees",
            draw=_some(words.person),
            says="{} will come.|The guests are {}.|With {}.|We expect {}.",
        ),
        "free": Blank(
            names="free|is_free|free_entry",
            draw=_coin,
            says={
                True: "Entry is free.|It costs nothing.",
                False: "Entry is not free.|You need a ticket.|There is a fee.",
            },
        ),
    },
    "review": {
        "item": Blank(
            names="item|product|article|subject",
            draw=words.thing,
            says="I bought the {}.|My new {} has come.|A review of the {}.|I have had the {} for a week.",
        ),
        "feeling": Blank(
            names="sentiment|feeling|opinion|mood",
            draw=_one_of("positive|negative|neutral"),
            says=FEELINGS,
            options="positive|negative|neutral",
        ),
        "stars": Blank(
            names="stars|rating|score|points",
            draw=lambda rng: rng.randint(1, 5),
            says="{} stars.|I give it {} of 5.|Rating: {}.|It gets {} points from me.",
        ),
        "price": Blank(
            names="price|paid|cost|price_paid",
            draw=lambda rng: rng.randint(2, 900),
            says="I paid {} euros.|It was {} euros.|Price: {} euros.|It cost {} euros.",
        ),
        "again": Blank(
            names="buy_again|recommended|recommend|would_buy_again",
            draw=_coin,
            says={
                True: "I would buy it again.|I can recommend it.",
                False: "I would not buy it again.|I cannot recommend it.",
            },
        ),
    },
    "trip": {
        "person": Blank(
            names="name|traveller|passenger|person",
            draw=words.person,
            says="{} wants to travel.|A trip for {}.|{} goes on holiday.|Passenger: {}.",
        ),
        "start": Blank(
            names="from|origin|start|departure_city",
            draw=words.place,
            says="The trip starts in {}.|From {}.|They leave {}.",
        ),
        "end": Blank(
            names="to|destination|end|arrival_city", draw=words.place, says="It goes to {}.|They want to see {}.|To {}."
        ),
        "vehicle": Blank(
            names="vehicle|transport|by|means",
            draw=_one_of(VEHICLES),
            says="They take the {}.|By {}.|They go by {}.",
            options=VEHICLES,
        ),
        "seats": Blank(
            names="seats|tickets|travellers|people",
            draw=lambda rng: rng.randint(1, 12),
            says="{} seats are needed.|Tickets for {}.|{} tickets, please.",
        ),
        "back": Blank(
            names="return|round_trip|return_ticket|and_back",
            draw=_coin,
            says={
                True: "It is a return trip.|They come back.|There and back.",
                False: "It is one way only.|They will not come back.|No way back.",
            },
        ),
    },
}


def _property(rng: random.Random, blank: Blank, value: Filling, name: str, *, titled: bool) -> dict[str, Any]:
    """The schema of a field, with a title as pydantic writes it or without."""
    if isinstance(value, list):
        made: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    else:
        made = {"type": JSON_TYPES[type(value)]}
    if blank.options:
        options = blank.options.split("|")
        rng.shuffle(options)
        made["enum"] = options
    return {"title": name.replace("_", " ").title(), **made} if titled else made


def _schema(rng: random.Random, form: str, properties: dict[str, Any], *, titled: bool) -> dict[str, Any]:
    """The schema of an object, as people write it or as pydantic does."""
    required = list(properties)
    if titled:
        return {"properties": properties, "required": required, "title": form.title(), "type": "object"}
    made = {"type": "object", "properties": properties, "required": required}
    return {**made, "additionalProperties": False} if rng.random() < 0.3 else made


def extraction(rng: random.Random) -> Extraction:
    """A form filled by chance, written out in sentences, and asked for in part."""
    form = rng.choice(tuple(FORMS))
    blanks = FORMS[form]
    first, *others = blanks
    named = [first, *rng.sample(others, rng.randint(2, len(others)))]
    values = {field: blanks[field].draw(rng) for field in named}
    text = " ".join(blanks[field].sentence(rng, values[field]) for field in named)
    asked = rng.sample(named, rng.randint(2, len(named)))
    titled = rng.random() < 0.25
    filled: dict[str, Filling] = {}
    properties: dict[str, Any] = {}
    for field in asked:
        name = rng.choice([n for n in blanks[field].names.split("|") if n not in filled])
        filled[name] = values[field]
        properties[name] = _property(rng, blanks[field], values[field], name, titled=titled)
    key = f"form:{form}:{sorted((field, str(values[field])) for field in asked)}"
    return Extraction(text=text, schema=_schema(rng, form, properties, titled=titled), filled=filled, key=key)
