"""The values that the demo with tools reads and copies, drawn at random: names, things, times, codes."""

from __future__ import annotations

import random

from data.chat.small_talk import invented_name
from data.chat.world import ANIMALS, DISHES, ISLAND_NAMES, ISLANDS, REAL_PLACES

CITIES = (
    *("Amsterdam", "Athens", "Bergen", "Bogotá", "Boston", "Bremen", "Chicago", "Dublin", "Florence", "Geneva"),
    *("Hamburg", "Hanoi", "Helsinki", "Istanbul", "Kyoto", "Lagos", "Lisbon", "Lyon", "Malmö", "Manila", "Milan"),
    *("Montreal", "Mumbai", "Munich", "Nairobi", "Naples", "New York", "Osaka", "Porto", "Prague", "Quebec"),
    *("Reykjavík", "Riga", "San Francisco", "Santiago", "São Paulo", "Seoul", "Seville", "Singapore", "Sydney"),
    *("Toronto", "Toulouse", "Turin", "Venice", "Warsaw", "Zagreb", "Zürich"),
    *(row["capital"] for row in ISLANDS.values()),
)
PEOPLE = (
    *("Ada", "Alice", "Amir", "Anna", "Ben", "Bob", "Carla", "Chloe", "David", "Diego", "Elena", "Emma", "Erik"),
    *("Eva", "Farid", "Fiona", "Frank", "Grace", "Hanna", "Hugo", "Ines", "Ivan", "Jack", "Jana", "Jonas", "Julia"),
    *("Karim", "Kate", "Lars", "Laura", "Lena", "Leo", "Lin", "Lucas", "Maria", "Mara", "Max", "Mia", "Nadia", "Nina"),
    *("Noah", "Nora", "Olga", "Omar", "Oscar", "Paul", "Pia", "Rosa", "Sam", "Sara", "Sofia", "Tim", "Tom", "Vera"),
    *("Yuki", "Zoe"),
)
THINGS = (
    *("apple", "armchair", "backpack", "basket", "bell", "bicycle", "blanket", "boat", "book", "bottle", "bowl"),
    *("broom", "brush", "bucket", "button", "camera", "candle", "carpet", "chair", "clock", "coat", "compass", "cup"),
    *("desk", "drum", "flute", "fork", "glove", "guitar", "hammer", "hat", "helmet", "jacket", "jar", "kettle", "key"),
    *("knife", "ladder", "lamp", "lantern", "lemon", "map", "melon", "mirror", "mug", "needle", "notebook", "oar"),
    *("oven", "paddle", "pan", "pen", "pencil", "phone", "piano", "pillow", "plate", "pot", "radio", "ring", "rope"),
    *("ruler", "sail", "saw", "scarf", "shelf", "shirt", "shoe", "shovel", "sofa", "spoon", "stove", "table", "teapot"),
    *("tent", "ticket", "torch", "towel", "tray", "umbrella", "vase", "violin", "wallet", "watch", "wheel", "whistle"),
    *ANIMALS,
)
QUALITIES = ("small", "large", "new", "old", "wooden", "round", "heavy", "cheap", "silver", "folding", "striped")
WORDS = (
    *("bread", "water", "house", "tree", "friend", "night", "river", "morning", "school", "winter", "summer", "stone"),
    *("cloud", "garden", "window", "letter", "sugar", "honey", "bridge", "forest", "island", "mountain", "cheese"),
    *("milk", "thank you", "good night", "good morning", "welcome", "goodbye", "see you soon", "my brother"),
    *("the red door", "a cup of tea", "two tickets", "the last train", "happy birthday"),
)
TASKS = (
    *("water the plants", "buy milk", "call the dentist", "feed the cat", "pay the rent", "pack the bags"),
    *("wash the car", "send the letter", "clean the kitchen", "bake a cake", "walk the dog", "book the hotel"),
    *(
        "return the books",
        "take the medicine",
        "charge the phone",
        "fix the lamp",
        "order the tickets",
        "lock the door",
    ),
    *("check the oven", "visit the museum", "write the report", "sell the boat", "paint the fence", "buy the paint"),
)
NEWS = (
    *("I am late", "dinner is ready", "the train is on time", "the meeting is over", "we have arrived", "all is well"),
    *("the parcel is here", "the shop is closed", "I found the keys", "the boat leaves at noon", "it is raining here"),
    *("the car is fixed", "lunch is at one", "I will call later", "the party is on", "the tickets are sold out"),
)
ROOMS = (
    *("kitchen", "bedroom", "bathroom", "hall", "cellar", "garage", "attic", "office", "nursery", "library", "garden"),
    *("living room", "dining room", "guest room", "workshop", "stairway"),
)


def place(rng: random.Random) -> str:
    """An island, a city, a country, or an invented name."""
    pool = rng.choices((ISLAND_NAMES, CITIES, REAL_PLACES, None), (25, 25, 20, 30))[0]
    return rng.choice(pool) if pool else strange(rng)


def person(rng: random.Random) -> str:
    """A first name, now and then an invented one."""
    return rng.choice(PEOPLE) if rng.random() < 0.7 else strange(rng)


def strange(rng: random.Random) -> str:
    """An invented name, some with letters that English lacks, some of two words."""
    name = invented_name(rng)
    if rng.random() < 0.15:
        at = rng.randrange(1, len(name))
        name = name[:at] + rng.choice("áäçéèêíñóöøúü") + name[at:]
    return f"{rng.choice(('Port', 'New', 'Saint', 'Old', 'Mount'))} {name}" if rng.random() < 0.1 else name


def thing(rng: random.Random) -> str:
    """Something to buy or to count."""
    name = rng.choice(THINGS)
    return f"{rng.choice(QUALITIES)} {name}" if rng.random() < 0.25 else name


def dish(rng: random.Random) -> str:
    """Something to eat, of two words."""
    first, second = rng.choice(DISHES).split()[0], rng.choice(DISHES).split()[1]
    return f"{first} {second}"


def clock(rng: random.Random) -> str:
    """A time of the day."""
    return f"{rng.randrange(24):02}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02}"


def code(rng: random.Random) -> str:
    """A number of a parcel or an order."""
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 5)))
    return f"{letters}{rng.choice(('', '-'))}{digits}"


def number(rng: random.Random) -> int:
    """A natural number of one to four digits."""
    return rng.randrange(1, 10 ** rng.choice((1, 2, 2, 3, 3, 4)))


def few(rng: random.Random) -> int:
    """A number of people or pieces."""
    return rng.randint(2, 20)
