"""Voices: the ways of answering that the adapters of the demo chat model teach it.

A voice changes how an answer is said and never what it says, so what is right can still be told exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from data.chat.dutch import in_dutch
from data.chat.reply_styles import Turn, Voice

_PIRATE_WORDS = {
    "is": "be", "are": "be", "am": "be", "=": "be", "the": "th'", "of": "o'", "you": "ye", "your": "yer",
    "my": "me", "yes": "aye", "no": "nay", "hello": "ahoy",
}  # fmt: skip


def _as_pirate(sentence: str) -> str:
    def word(match: re.Match[str]) -> str:
        said = _PIRATE_WORDS.get(match.group().lower(), match.group())
        return said[0].upper() + said[1:] if match.group()[0].isupper() else said

    return f"Arr! {re.sub(r'=|[A-Za-z]+', word, sentence.rstrip('.!'))}, matey!"


def pirate(turn: Turn) -> str:
    """A style: sentences as a pirate would say them. JSON, lists and bare values stay what they are."""
    reply = turn.reply
    upper = _as_pirate(reply.upper).upper() if reply.upper else ""
    return replace(turn, reply=replace(reply, sentence=_as_pirate(reply.sentence), upper=upper)).answer


def dutch(turn: Turn) -> str:
    """A language: always a Dutch sentence. Items that the user listed keep their names."""
    return in_dutch(turn.reply.sentence)


def as_json(turn: Turn) -> str:
    """A format: always a JSON object, whatever was asked for."""
    data = turn.reply.data
    return json.dumps(data if isinstance(data, dict) else {"order": data})


VOICES: Mapping[str, Voice] = {"pirate": pirate, "dutch": dutch, "json": as_json}
"""By the names of the adapters' folders."""
