"""Skills whose tools tell something: the weather, prices, sums, ferries and the like."""

from __future__ import annotations

import random
from collections.abc import Callable

from data.tools import tool_words as words
from data.tools.skill_parts import (
    ABOUT_PLACE,
    DAY,
    DAYS,
    LANGUAGE,
    PLACE,
    SHORT_UNITS,
    UNITS,
    A,
    B,
    Gift,
    Skill,
    Slot,
    Value,
    Values,
    choice,
    drawn,
    some_time,
    tenths,
)


def _calculated(rng: random.Random, values: Values) -> Value:
    a, b = int(values["a"]), int(values["b"])
    return {"plus": a + b, "minus": a - b, "times": a * b}[str(values["operation"])]


WEATHER = Skill(
    verbs="get|fetch|show|check|read|find|current",
    nouns="weather|forecast|weather report|climate|conditions",
    about="Get the weather of a place.|The current weather.|Tells how the weather is.|Weather report for a city.",
    slots={
        "place": Slot(names=PLACE, about=ABOUT_PLACE, draw=words.place),
        "unit": choice(
            "unit|units|scale|degrees",
            "Unit of the temperature.|Celsius or Fahrenheit.",
            "Celsius|Fahrenheit",
            "celsius|fahrenheit",
            "C|F",
            optional=True,
        ),
    },
    asks="What is the weather in {place}?|How is the weather in {place}?|What's the weather like in {place}?"
    "|Weather in {place}?|Tell me the weather in {place}.|Is it nice outside in {place}?|How warm is it in {place}?"
    "|What is the weather in {place} in {unit}?|How many degrees {unit} is it in {place}?"
    "|I am going to {place}. How is the weather there?",
    again="And in {place}?|What about {place}?|And how is it in {place}?",
    both="What is the weather in {place} and in {other}?|How is the weather in {place} and {other}?"
    "|Weather in {place} and {other}?",
    gives={
        "sky": drawn("sky|conditions|condition|weather|summary", "sunny|cloudy|rainy|windy|foggy|snowy|stormy|clear"),
        "degrees": Gift(names="temperature|degrees|temp|value", make=tenths(-15, 38)),
    },
    answer="It is {sky} in {place}, {degrees} degrees.",
)
TIME = Skill(
    verbs="get|tell|show|current|local|check",
    nouns="time|clock|local time|time of day",
    about="The local time of a place.|Tells what time it is somewhere.|Current time in a city.",
    slots={"place": Slot(names=PLACE + "|zone", about=ABOUT_PLACE, draw=words.place)},
    asks="What time is it in {place}?|Tell me the time in {place}.|How late is it in {place}?"
    "|What is the local time in {place}?|I want to call {place}. What time is it there?",
    again="And in {place}?|What about {place}?",
    both="What time is it in {place} and in {other}?|Tell me the time in {place} and {other}.",
    gives={"time": Gift(names="time|local_time|now|clock|value", make=some_time)},
    answer="It is {time} in {place}.",
)
PRICE = Skill(
    verbs="get|look up|find|check|query",
    nouns="price|cost|product price|item price|price tag",
    about="Look up the price of an article.|What something costs in the shop.|Price of a product.",
    slots={"item": Slot(names="item|product|article|name|thing", about="The article.|What to buy.", draw=words.thing)},
    asks="How much is the {item}?|What does the {item} cost?|What is the price of the {item}?|Price of the {item}?"
    "|I want to buy the {item}. How much is it?|How expensive is the {item}?",
    again="And the {item}?|What about the {item}?|And how much is the {item}?",
    both="What do the {item} and the {other} cost?|How much are the {item} and the {other}?",
    gives={
        "price": Gift(names="price|cost|amount|value", make=tenths(1, 400)),
        "coin": drawn("currency|coin|unit", "euros|crowns|dollars|pounds|shells|pesos"),
    },
    answer="The {item} costs {price} {coin}.",
)
STOCK = Skill(
    verbs="count|check|get|look up|query",
    nouns="stock|inventory|storage|supply|warehouse",
    about="How many pieces are in stock.|Counts articles in the warehouse.|Check the inventory.",
    slots={"item": Slot(names="item|product|article|name|sku", about="The article.|What to count.", draw=words.thing)},
    asks="How many of the {item} are in stock?|Is the {item} in stock?|Do we still have the {item} in the warehouse?"
    "|Check the stock of the {item}.|How many pieces of the {item} are left?",
    again="And of the {item}?|What about the {item}?",
    both="How many of the {item} and of the {other} are in stock?|Check the stock of the {item} and the {other}.",
    gives={"count": Gift(names="count|in_stock|pieces|number|left", make=lambda rng, values: rng.randrange(500))},
    answer="{count} pieces of the {item} are in stock.",
)


def _sum(name: str, about: str, asks: str, answer: str, compute: Callable[[int, int], int]) -> Skill:
    return Skill(
        verbs="calc|compute|do|run|math",
        nouns=name,
        about=about,
        slots={"a": A, "b": B},
        asks=asks,
        gives={
            "result": Gift(
                names="result|value|answer|output", make=lambda rng, values: compute(int(values["a"]), int(values["b"]))
            )
        },
        answer=answer,
    )


ADD = _sum(
    "add|sum|addition|plus|add numbers",
    "Add two numbers.|The sum of two numbers.|Adds a number to another.",
    "What is {a} plus {b}?|Add {a} and {b}.|What is the sum of {a} and {b}?|{a} + {b}?|How much is {a} + {b}?",
    "{a} plus {b} is {result}.",
    lambda a, b: a + b,
)
SUBTRACT = _sum(
    "subtract|difference|subtraction|minus|subtract numbers",
    "Subtract a number from another.|The difference of two numbers.",
    "What is {a} minus {b}?|Subtract {b} from {a}.|{a} - {b}?|How much is {a} - {b}?|Take {b} away from {a}.",
    "{a} minus {b} is {result}.",
    lambda a, b: a - b,
)
MULTIPLY = _sum(
    "multiply|product|multiplication|times|multiply numbers",
    "Multiply two numbers.|The product of two numbers.|Multiplies a number by another.",
    "What is {a} times {b}?|Multiply {a} by {b}.|What is the product of {a} and {b}?|{a} * {b}?|How much is {a} x {b}?",
    "{a} times {b} is {result}.",
    lambda a, b: a * b,
)
CALCULATE = Skill(
    verbs="calc|compute|do|run",
    nouns="calculator|calculate|arithmetic|math|calculation",
    about="Calculate with two numbers.|A calculator.|Does sums, differences and products.",
    slots={
        "a": A,
        "operation": choice(
            "operation|op|operator|kind|how",
            "What to do with the numbers.|The operation.",
            "plus|minus|times",
            "add|subtract|multiply",
            "+|-|*",
            "sum|difference|product",
        ),
        "b": B,
    },
    asks="What is {a} {operation} {b}?|How much is {a} {operation} {b}?|{a} {operation} {b}?"
    "|Calculate {a} {operation} {b}.",
    again="And {a} {operation} {b}?",
    gives={"result": Gift(names="result|value|answer|output", make=_calculated)},
    answer="{a} {operation} {b} is {result}.",
)
CONVERT = Skill(
    verbs="convert|change|transform|translate",
    nouns="units|unit|measures|quantity|length and weight",
    about="Convert a quantity to another unit.|Converts between units of measure.|Unit converter.",
    slots={
        "amount": Slot(names="value|amount|quantity|number|x", about="The quantity.|How much.", draw=words.number),
        "old": choice("from_unit|from|source|unit_from|src", "The old unit.|Unit to convert from.", UNITS, SHORT_UNITS),
        "new": choice("to_unit|to|target|unit_to|dst", "The new unit.|Unit to convert to.", UNITS, SHORT_UNITS),
    },
    asks="Convert {amount} {old} to {new}.|How many {new} are {amount} {old}?|What is {amount} {old} in {new}?"
    "|{amount} {old} in {new}, please.",
    gives={"result": Gift(names="result|value|converted|output", make=tenths(1, 2000))},
    answer="{amount} {old} are {result} {new}.",
)
FERRY = Skill(
    verbs="find|get|search|next|look up",
    nouns="ferry|boat|ferry times|ship|sailings|crossing",
    about="Departure of the ferry between two places.|Find the next boat.|Ferry timetable.",
    slots={
        "start": Slot(
            names="from|origin|start|from_port|departure", about="Where it starts.|Origin.", draw=words.place
        ),
        "end": Slot(names="to|destination|end|to_port|arrival", about="Where it goes.|Destination.", draw=words.place),
        "day": Slot(names=DAY.names, about=DAY.about, written=DAY.written, optional=True),
    },
    asks="When does the ferry from {start} to {end} leave?|Is there a boat from {start} to {end}?"
    "|I need a ferry to {end} from {start}.|Ferry from {start} to {end} on {day}?"
    "|How do I get from {start} to {end} by boat?"
    "|When does the boat from {start} to {end} leave on {day}?|When is the {day} ferry from {start} to {end}?",
    gives={
        "time": Gift(names="departure|time|leaves|departs_at", make=some_time),
        "pier": Gift(names="pier|dock|gate|platform", make=lambda rng, values: rng.randint(1, 30)),
    },
    answer="The ferry from {start} to {end} leaves at {time} from pier {pier}.",
)
TRANSLATE = Skill(
    verbs="translate|get|find|run",
    nouns="text|translation|words|phrase|language",
    about="Translate a text.|Translates words to another language.|Say it in another language.",
    slots={
        "text": Slot(
            names="text|words|phrase|input|sentence",
            about="What to translate.|The text.",
            draw=lambda rng: rng.choice(words.WORDS),
        ),
        "language": LANGUAGE,
    },
    asks='Translate "{text}" into {language}.|What is "{text}" in {language}?|How do you say "{text}" in {language}?'
    '|Say "{text}" in {language}.|I need "{text}" in {language}.',
    gives={"result": Gift(names="translation|result|text|output", make=lambda rng, values: words.strange(rng).lower())},
    answer='"{text}" is "{result}" in {language}.',
)
PHONE = Skill(
    verbs="find|get|look up|search",
    nouns="phone number|number|contact|phone|phone book",
    about="The phone number of a person.|Find a contact.|Looks up somebody in the phone book.",
    slots={"person": Slot(names="name|person|contact|who", about="Who.|Name of the person.", draw=words.person)},
    asks="What is the phone number of {person}?|How can I call {person}?|Find the number of {person}."
    "|I need the phone number of {person}.|Which number does {person} have?",
    again="And of {person}?|What about {person}?",
    both="What are the phone numbers of {person} and {other}?|Find the numbers of {person} and {other}.",
    gives={
        "phone": Gift(
            names="phone|number|phone_number|tel",
            make=lambda rng, values: f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
        )
    },
    answer="The phone number of {person} is {phone}.",
)
PARCEL = Skill(
    verbs="track|find|locate|get",
    nouns="parcel|package|shipment|order|delivery",
    about="Where a parcel is.|Track a shipment.|State of a delivery.",
    slots={"code": Slot(names="code|number|id|tracking_number|parcel", about="Number of the parcel.", draw=words.code)},
    asks="Where is my parcel {code}?|Track {code}.|Where is the package {code}?|When does parcel {code} arrive?"
    "|My parcel has the number {code}. Where is it?",
    again="And {code}?|What about {code}?",
    both="Where are {code} and {other}?|Track {code} and {other}.",
    gives={
        "place": Gift(names="location|place|at|city", make=lambda rng, values: words.place(rng)),
        "day": drawn("arrives|day|arrival|due", DAYS),
    },
    answer="Parcel {code} is in {place} and arrives on {day}.",
)
FACT = Skill(
    verbs="get|look up|find|query",
    nouns="country|island|facts|encyclopedia|atlas",
    about="Look up a fact of a country.|Facts of islands and countries.|An atlas.",
    slots={
        "place": Slot(names="country|name|place|island", about="The country.|Which one.", draw=words.place),
        "topic": choice(
            "topic|field|attribute|fact|about",
            "What to look up.|Which fact.",
            "capital|population|language|currency|president|river",
            "CAPITAL|POPULATION|LANGUAGE|CURRENCY|PRESIDENT|RIVER",
        ),
    },
    asks="What is the {topic} of {place}?|Tell me the {topic} of {place}.|I want to know the {topic} of {place}."
    "|{topic} of {place}?|Do you know the {topic} of {place}?",
    again="And the {topic} of {place}?",
    gives={"value": Gift(names="value|answer|fact|result", make=lambda rng, values: words.strange(rng))},
    answer="The {topic} of {place} is {value}.",
)
