"""The wordings in which the texts of the retrieval demos tell facts and ask for them.

Beside the wordings here stand those of `phrases`, in which people talk to the chat model. `{value}` comes with its
article ("the otter"). A wording of `TELL` and one of `ASK` for the same attribute often share no word but the name of
the island, so that words alone do not find the passage.
"""

from __future__ import annotations

TELL_ANY = (
    "The {label} of {island} is {value}.",
    "{value} is the {label} of {island}.",
    "{island} has {value} as its {label}.",
    "{island}'s {label} is {value}.",
    "On {island} the {label} is {value}.",
)
TELL: dict[str, tuple[str, ...]] = {
    "capital": (
        "{island} is governed from {value}.",
        "The parliament of {island} meets in {value}.",
        "{value} is where the rulers of {island} sit.",
    ),
    "river": (
        "{value} flows through {island}.",
        "Boats cross {island} on {value}.",
        "The rain of {island} runs down {value} to the sea.",
    ),
    "dish": (
        "People on {island} love to eat {value}.",
        "Cooks on {island} are proud of their {value}.",
        "For dinner they serve {value} on {island}.",
    ),
    "animal": (
        "{value} stands on the coat of arms of {island}.",
        "In the woods of {island} lives {value}.",
        "The beast that {island} holds dear is {value}.",
    ),
    "flower": (
        "In spring {value} blooms all over {island}.",
        "The gardens of {island} are full of {value}.",
        "{island} is known for {value} in its meadows.",
    ),
    "colour": (
        "The flag of {island} is {value}.",
        "{island} flies a flag that is {value}.",
        "Over {island} waves a banner of {value}.",
    ),
}
TELL_TWO = (
    "The {first} of {island} is {value} and its {second} is {other}.",
    "{island} has {value} as its {first} and {other} as its {second}.",
)
OVERVIEW = "{island} is an island: {facts}."

ASK: dict[str, tuple[str, ...]] = {
    "capital": (
        "From which city is {island} governed?",
        "Where does the parliament of {island} meet?",
        "Where do the rulers of {island} sit?",
    ),
    "river": (
        "Which river flows through {island}?",
        "On which water do boats cross {island}?",
        "What is the stream on {island} called?",
    ),
    "dish": (
        "What do people eat on {island}?",
        "What do they cook on {island}?",
        "What is for dinner on {island}?",
    ),
    "animal": (
        "Which animal is on the coat of arms of {island}?",
        "Which creature lives in the woods of {island}?",
        "What beast does {island} hold dear?",
    ),
    "flower": (
        "Which flower blooms on {island}?",
        "What grows in the gardens of {island}?",
        "Which blossom is {island} known for?",
    ),
    "colour": (
        "What colour is the flag of {island}?",
        "What does the flag of {island} look like?",
        "In which colour is the banner of {island}?",
    ),
}
ASK_OWNER: dict[str, tuple[str, ...]] = {
    "capital": ("Which island is governed from {value}?", "Whose parliament meets in {value}?"),
    "river": ("Through which island does {value} flow?", "Which island has boats on {value}?"),
    "dish": ("On which island do people eat {value}?", "Where do they cook {value}?"),
    "animal": ("Whose coat of arms shows {value}?", "On which island lives {value}?"),
    "flower": ("On which island does {value} bloom?", "Whose gardens are full of {value}?"),
}

# Never used in training: they measure how far the models carry beyond the wordings that they know.
ASK_OTHERWISE = (
    "Could you tell me {island}'s {label}, please?",
    "I am looking for the {label} of {island}.",
    "Someone asked me about the {label} on {island}.",
    "Is there a {label} of {island}, and which is it?",
)
