"""Harmony, the way gpt-oss writes answers: messages on channels, of which some are calls.

<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>
<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

import re

from quire import Channels
from quire.records.channels import MessageKind

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
AGAIN = f"{START}assistant"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"

RECIPIENT = re.compile(r"\bto=([\w.-]+)")
"""To whom a message goes, be it said before the channel or after it."""
_PEOPLE = ("assistant", "user")


def kind(header: str) -> MessageKind:
    """A message with a recipient is a call, on whichever channel; what is for the user is on the others but one."""
    to = RECIPIENT.search(header)
    if to is not None and to[1] not in _PEOPLE:
        return "call"
    return "thought" if f"{CHANNEL}analysis" in header else "text"


CHANNELS = Channels(
    starts=(START, CHANNEL),
    begin=MESSAGE,
    ends=(END, CALL, RETURN),
    kind=kind,
    again=AGAIN,
    answer=f"{CHANNEL}final{MESSAGE}",
    marks=(CONSTRAIN,),
)


def matches(template: str) -> bool:
    """Whether a template has messages on channels."""
    return CHANNEL in template and START in template and MESSAGE in template
