"""Harmony, the way gpt-oss writes answers: messages on channels, of which some are calls.

<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>
<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

import re

from quire import Channels
from quire.records.reasoning import MessageKind

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
AGAIN = f"{START}assistant"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"

RECIPIENT = re.compile(r"\bto=([\w.-]+)")
"""Finds the recipient of a message, before or after the channel."""
_PEOPLE = ("assistant", "user")


def kind(header: str) -> MessageKind:
    """Kind of a message: with a recipient a call, on any channel; on `analysis` reasoning; otherwise content."""
    to = RECIPIENT.search(header)
    if to is not None and to[1] not in _PEOPLE:
        return "call"
    return "thought" if f"{CHANNEL}analysis" in header else "text"


CHANNELS = Channels(
    starts=(START, CHANNEL),
    begin=MESSAGE,
    ends=(END, CALL, RETURN),
    kind=kind,
    separator=AGAIN,
    answer=f"{CHANNEL}final{MESSAGE}",
    special_tokens=(CONSTRAIN,),
)


def matches(template: str) -> bool:
    """Whether a template uses messages on channels."""
    return CHANNEL in template and START in template and MESSAGE in template
