"""The generator: an endless, seeded stream of conversations with correct answers.

``training_conversations(seed)`` never yields a question whose content is held
out; ``held_out_questions(count)`` yields only such questions, each behind the
turns that it may refer to.

    python -m data.chat.conversations      # print a few of both
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from data.chat import phrases, question_kinds, small_talk
from data.chat.follow_up_questions import follow_up_makers
from data.chat.reply_styles import STYLES, State, Turn, Voice, is_held_out, plainly

Message = dict[str, str]

FAMILIES = ("facts", "arithmetic", "sorting", "follow_ups", "formats", "unknown", "memory", "small_talk")
_FRESH: dict[question_kinds.MakeTurn, float] = {
    question_kinds.fact: 11,
    question_kinds.owner: 6,
    question_kinds.pair: 3,
    question_kinds.profile: 2,
    question_kinds.arithmetic: 34,
    question_kinds.compare: 3,
    question_kinds.sort: 24,
    question_kinds.extreme: 4,
    small_talk.unknown_island: 9,
    small_talk.unknown_attribute: 3,
    small_talk.off_topic: 4,
    small_talk.small_talk: 6,
    small_talk.tell: 3,
    small_talk.recall: 2,
}


@dataclass(frozen=True)
class Question:
    """A held-out question: the messages up to it and the only correct answer."""

    family: str
    key: str
    messages: list[Message]
    answer: str


def _system_message(rng: random.Random, state: State) -> Message | None:
    """Draw a system message; it may set a style for the whole conversation."""
    draw = rng.random()
    if draw < 0.6:
        return None
    text = rng.choice(phrases.NEUTRAL_SYSTEM)
    if draw > 0.85:
        state.style = rng.choice([s for s in STYLES if s != "sentence"])
        order = rng.choice(phrases.STYLE_SYSTEM[state.style])
        text = f"{text} {order}" if rng.random() < 0.4 else order
    return {"role": "system", "content": text}


def _casual(rng: random.Random, turn: Turn) -> str:
    """Add what people add or leave out, without changing what is asked."""
    text = turn.question
    if turn.family != "small_talk" and rng.random() < 0.15:
        text = rng.choice(phrases.OPENERS) + text
    # A name the model has to repeat must stay as the user wrote it.
    if turn.family not in ("unknown", "memory") and "place:" not in turn.key and rng.random() < 0.12:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip("?.!") or text
    return text


def _with_style(rng: random.Random, turn: Turn, state: State) -> Turn:
    """Apply the style of the conversation, or ask for one behind the question."""
    if turn.family == "formats":
        return turn
    turn = replace(turn, question=_casual(rng, turn), style=state.style)
    stylable = turn.family in ("facts", "arithmetic", "sorting", "follow_ups")
    if stylable and rng.random() < 0.15:
        style = rng.choice(list(phrases.STYLE_SUFFIX))
        suffix = rng.choice(phrases.STYLE_SUFFIX[style])
        question = turn.question
        question += " " if question[-1] in "?.!" else ". "
        return replace(turn, question=question + suffix, style=style, family="formats")
    return turn if state.style == "sentence" or turn.family == "follow_ups" else replace(turn, family="formats")


def _next_turn(rng: random.Random, state: State, held_out: bool) -> Turn:
    """Draw turns until one lies on the wanted side of the split."""
    while True:
        makers = follow_up_makers(state)
        if small_talk.knows_user(state) and rng.random() < 0.25:
            make: question_kinds.MakeTurn = small_talk.recall
        elif makers and rng.random() < 0.55:
            make = rng.choice(makers)
        else:
            make = rng.choices(list(_FRESH), list(_FRESH.values()))[0]
        turn = make(rng, state)
        if is_held_out(turn.key) == held_out:
            return _with_style(rng, turn, state)


def _turn_count(rng: random.Random) -> int:
    """One to four questions in most conversations, and now and then a long chat."""
    return rng.choices((1, 2, 3, 4, 5, 6, 8), (30, 25, 20, 15, 4, 3, 3))[0]


def _conversation(rng: random.Random, held_out_end: bool, voice: Voice) -> tuple[list[Message], Turn]:
    """Draw one conversation; only its last question may be held out."""
    state = State()
    system = _system_message(rng, state)
    messages = [system] if system else []
    count = _turn_count(rng)
    for position in range(count):
        last = position == count - 1
        turn = _next_turn(rng, state, held_out_end and last)
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": voice(turn)})
        state.advance(turn)
    return messages, turn


def training_conversations(seed: int | str, voice: Voice = plainly) -> Iterator[list[Message]]:
    """Yield training conversations for ever; equal seeds give equal streams, whatever the voice."""
    rng = random.Random(f"train:{seed}")
    while True:
        yield _conversation(rng, False, voice)[0]


def held_out_questions(count: int, seed: int | str = 0, voice: Voice = plainly) -> list[Question]:
    """Draw held-out questions, the same number of every family."""
    rng = random.Random(f"held-out:{seed}")
    wanted = {family: -(-count // len(FAMILIES)) for family in FAMILIES}
    questions: list[Question] = []
    while any(wanted.values()):
        messages, turn = _conversation(rng, True, voice)
        if wanted[turn.family]:
            wanted[turn.family] -= 1
            questions.append(Question(turn.family, turn.key, messages[:-1], voice(turn)))
    return sorted(questions, key=lambda q: FAMILIES.index(q.family))


def _show() -> None:
    """Print a few training conversations and held-out questions."""
    stream = training_conversations("show")
    for _ in range(12):
        print("\n".join(f"{m['role']:>9}: {m['content']}" for m in next(stream)), "\n")
    for question in held_out_questions(24):
        print(f"[{question.family}] {question.messages[-1]['content']} -> {question.answer}")


if __name__ == "__main__":
    _show()
