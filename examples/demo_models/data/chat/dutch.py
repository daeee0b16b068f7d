"""Dutch: every sentence of the generator once more, in a language that needs no letter beyond a to z."""

from __future__ import annotations

import re
from collections.abc import Callable

from data.chat import phrases, world
from data.chat.reply_styles import capitalise

# Label -> the article and the Dutch word.
_LABELS = {
    "capital": ("de", "hoofdstad"),
    "river": ("de", "rivier"),
    "national dish": ("het", "nationale gerecht"),
    "national animal": ("het", "nationale dier"),
    "national flower": ("de", "nationale bloem"),
    "flag colour": ("de", "vlagkleur"),
}
_SLOTS = {
    "name": "naam",
    "favourite colour": "lievelingskleur",
    "favourite number": "lievelingsgetal",
    "favourite food": "lievelingseten",
}
_PLACES = {"first": "eerste", "last": "laatste", "largest": "grootste", "smallest": "kleinste"}
_COLOURS = {
    "blue": "blauw", "green": "groen", "red": "rood", "white": "wit", "yellow": "geel", "purple": "paars",
    "orange": "oranje", "black": "zwart", "pink": "roze", "brown": "bruin", "grey": "grijs", "gold": "goud",
}  # fmt: skip
_INGREDIENTS = {
    "plum": "pruimen", "honey": "honing", "leek": "prei", "barley": "gerst", "fig": "vijgen", "onion": "uien",
    "pear": "peren", "bean": "bonen", "carrot": "wortel", "walnut": "noten", "mushroom": "champignon",
    "pea": "erwten", "cherry": "kersen", "cheese": "kaas", "apple": "appel", "potato": "aardappel",
    "pumpkin": "pompoen", "rye": "rogge", "salmon": "zalm", "lentil": "linzen", "almond": "amandel",
    "tomato": "tomaten", "rice": "rijst", "cabbage": "kool", "fish": "vis", "corn": "mais", "chicken": "kip",
    "turnip": "rapen", "lemon": "citroen", "spinach": "spinazie",
}  # fmt: skip
_COURSES = {
    "soup": "soep", "bread": "brood", "pie": "pastei", "stew": "stoofpot", "cake": "taart", "tart": "quiche",
    "pudding": "pudding", "salad": "salade",
}  # fmt: skip
_ANIMALS = {
    "otter": "otter", "heron": "reiger", "badger": "das", "lynx": "lynx", "falcon": "valk", "hare": "haas",
    "ibex": "steenbok", "beaver": "bever", "stork": "ooievaar", "weasel": "wezel", "moose": "eland",
    "swan": "zwaan", "wolf": "wolf", "seal": "zeehond", "raven": "raaf", "gecko": "gekko", "fox": "vos",
    "crane": "kraanvogel", "bear": "beer", "owl": "uil", "turtle": "schildpad", "pony": "pony",
    "puffin": "papegaaiduiker", "dolphin": "dolfijn", "camel": "kameel", "magpie": "ekster", "goat": "geit",
    "marten": "marter", "pelican": "pelikaan", "newt": "salamander",
}  # fmt: skip
_FLOWERS = {
    "aster": "aster", "bluebell": "boshyacint", "camellia": "camelia", "clover": "klaver", "crocus": "krokus",
    "daffodil": "narcis", "dahlia": "dahlia", "daisy": "margriet", "fuchsia": "fuchsia", "gentian": "gentiaan",
    "geranium": "geranium", "heather": "heide", "hibiscus": "hibiscus", "iris": "iris", "jasmine": "jasmijn",
    "lavender": "lavendel", "lilac": "sering", "lily": "lelie", "lotus": "lotus", "marigold": "goudsbloem",
    "orchid": "orchidee", "pansy": "viool", "peony": "pioenroos", "poppy": "klaproos",
    "primrose": "sleutelbloem", "rose": "roos", "snowdrop": "sneeuwbloem", "thistle": "distel",
    "tulip": "tulp", "violet": "bosviool",
}  # fmt: skip
_DISHES = {
    f"{what} {course}": _INGREDIENTS[what] + _COURSES[course]
    for what, course in (dish.split() for dish in world.DISHES)
}
_WORDS = {**_COLOURS, **_DISHES, **_ANIMALS, **_FLOWERS}
_SENTENCES = {
    phrases.GREETING: "Hallo! Ik ben Lumi. Vraag me naar de Lantaarneilanden, kleine sommen of volgordes.",
    phrases.ABILITIES: ("Ik kan je over de Lantaarneilanden vertellen, kleine sommen maken en korte lijsten sorteren."),
    "You are welcome!": "Graag gedaan!",
    "Goodbye! Come back soon.": "Tot ziens! Kom gauw terug.",
    "I am well, thank you. How can I help?": "Het gaat goed, dank je. Hoe kan ik helpen?",
    "I am Lumi, a small language model from the Lantern Isles.": (
        "Ik ben Lumi, een klein taalmodel van de Lantaarneilanden."
    ),
    "The Lantern Isles are thirty islands, from Ambrel to Zephyra.": (
        "De Lantaarneilanden zijn dertig eilanden, van Ambrel tot Zephyra."
    ),
    "Arvia, Lumeria and Zephyra are three of the Lantern Isles.": (
        "Arvia, Lumeria en Zephyra zijn drie van de Lantaarneilanden."
    ),
    "I was trained from scratch on a small made-up world.": "Ik ben getraind op een kleine, verzonnen wereld.",
    "Good! What would you like to know next?": "Goed! Wat wil je nu weten?",
    "I am sorry. I am a small model and I make mistakes.": "Het spijt me. Ik ben een klein model en maak fouten.",
    "A lantern fish told me one, but it was too deep for me.": (
        "Een lantaarnvis vertelde me er een, maar die was me te diep."
    ),
    "Sorry, I only speak English.": "Ik spreek alleen Nederlands.",
    "Yes. Try: What is the capital of Arvia?": "Ja. Probeer eens: Wat is de hoofdstad van Arvia?",
    phrases.OFF_TOPIC_ANSWER: "Dat weet ik niet. Vraag me naar de Lantaarneilanden, kleine sommen of volgordes.",
}


def _value(label: str, english: str) -> str:
    """A value as it stands in a sentence, with its article if English has one there; names stay what they are."""
    word = _WORDS.get(english, english)
    return next(f"de {word}" if a.article else word for a in world.ATTRIBUTES if a.label == label)


def _labelled(label: str) -> str:
    return " ".join(_LABELS[label])


def _fact(label: str, island: str, value: str) -> str:
    return f"{capitalise(_labelled(label))} van {island} is {_value(label, value)}."


def _pair(label: str, island: str, value: str, label_2: str, value_2: str) -> str:
    first = _fact(label, island, value).removesuffix(".")
    return f"{first} en {_labelled(label_2)} is {_value(label_2, value_2)}."


def _owner(value: str, label: str, island: str) -> str:
    value = value[0].lower() + value[1:] if value[0].lower() + value[1:] in _WORDS else value
    return f"{capitalise(_value(label, value))} is {_labelled(label)} van {island}."


def _profile(island: str, rest: str) -> str:
    row = world.ISLANDS[island]
    parts = [f"{_labelled(a.label)} is {_value(a.label, row[a.name])}" for a in world.ATTRIBUTES]
    return f"{island} is een van de Lantaarneilanden: {', '.join(parts[:-1])} en {parts[-1]}."


_LABEL = f"({'|'.join(a.label for a in world.ATTRIBUTES)})"
_PATTERNS: tuple[tuple[str, Callable[..., str]], ...] = (
    (rf"The {_LABEL} of (\w+) is (?:the )?([\w ]+) and its {_LABEL} is (?:the )?([\w ]+)\.", _pair),
    (rf"The {_LABEL} of (\w+) is (?:the )?([\w ]+)\.", _fact),
    (rf"(?:The )?([\w ]+) is the {_LABEL} of (\w+)\.", _owner),
    (r"(\w+) is one of the Lantern Isles: (.*)", _profile),
    (r"(.+) = (.+)", "{} is {}.".format),
    (r"Yes, (\d+) is larger than (\d+)\.", "Ja, {} is groter dan {}.".format),
    (r"No, (\d+) is smaller than (\d+)\.", "Nee, {} is kleiner dan {}.".format),
    (r"In order: (.*)", "Op volgorde: {}".format),
    (r"In reverse order: (.*)", "In omgekeerde volgorde: {}".format),
    (r"The (largest|smallest|first|last) is (.*)", lambda place, item: f"De {_PLACES[place]} is {item}"),
    (r"There are (\d+)\.", "Er zijn er {}.".format),
    (r"I don't know (\w+)\. It is not .*", "Ik ken {} niet. Het is geen van de Lantaarneilanden.".format),
    (r"I don't know the [\w ]+ of (\w+)\.", "Dat weet ik niet van {}.".format),
    (r"Nice to meet you, (.*)", "Aangenaam, {}".format),
    (r"I will remember that: (.*)\.", lambda value: f"Dat onthoud ik: {_WORDS.get(value, value)}."),
    (r"You have not told me your (.*) yet\.", lambda slot: f"Je hebt me je {_SLOTS[slot]} nog niet verteld."),
    (r"Your ([a-z ]+) is (.*)\.", lambda slot, value: f"Je {_SLOTS[slot]} is {_WORDS.get(value, value)}."),
)


def in_dutch(english: str) -> str:
    """A sentence that the generator can answer with. Raises ValueError for one that nobody translated."""
    if english in _SENTENCES:
        return _SENTENCES[english]
    for pattern, write in _PATTERNS:
        match = re.fullmatch(pattern, english)
        if match:
            return write(*match.groups())
    raise ValueError(f"no Dutch for {english!r}")
