"""Readings: passages about invented islands, a question about them, and the answer that the passages give.

    python -m data.retrieval.readings

prints a few. The names of a training world are never those of an evaluation world, so a right answer to a held-out
reading was read and not recalled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from data.chat import world
from data.chat.conversations import Message, Question
from data.chat.reply_styles import capitalise
from data.retrieval import questions as asked
from data.retrieval.invented_worlds import Isles, invented
from data.retrieval.passages import Passage, corpus, value_of

UNKNOWN = "The passages do not say."
PROMPTS = (
    "Answer from these passages:\n{passages}\n\n{question}",
    "Passages:\n{passages}\n\nQuestion: {question}",
    "Context:\n{passages}\n\nQuestion: {question}",
    "{passages}\n\n{question}",
)
SYSTEM = "Answer from these passages:\n{passages}"
MAX_ISLANDS, MAX_OTHERS = 4, 2
SHARES = {asked.ask_fact: 10.0, asked.ask_owner: 4.0, asked.ask_pair: 2.0}
UNANSWERED = 0.1


def training_readings(seed: int | str) -> Iterator[list[Message]]:
    """Endless conversations of one reading each; equal seeds give equal streams."""
    rng = random.Random(f"readings:{seed}")
    while True:
        question = _reading(rng, False, MAX_OTHERS)
        yield [*question.messages, {"role": "assistant", "content": question.answer}]


def held_out_readings(count: int, seed: int | str = 0, max_others: int = 0) -> list[Question]:
    """Readings in worlds whose names training never uses. max_others: passages beside the one that answers."""
    rng = random.Random(f"held-out readings:{seed}")
    return [_reading(rng, True, max_others) for _ in range(count)]


def _reading(rng: random.Random, new: bool, max_others: int) -> Question:
    """One question with some passages, among which there is usually one that answers it."""
    isles = invented(rng, rng.randint(2, MAX_ISLANDS), new)
    passages = corpus(rng, isles)
    question = rng.choices(list(SHARES), list(SHARES.values()))[0](rng, isles)
    answering = [passage for passage in passages if asked.answers(passage, question)]
    others = [passage for passage in passages if not passage.tells & question.asks]
    chosen = rng.sample(others, rng.randint(0, min(max_others, len(others))))
    family, answer = "unanswered", UNKNOWN
    if not chosen or rng.random() >= UNANSWERED:
        chosen.append(rng.choice(answering))
        family, answer = question.sense.split(":")[0], _answer(isles, question)
    rng.shuffle(chosen)
    return Question(family=family, key=question.key, messages=_messages(rng, chosen, question.text), answer=answer)


def _answer(isles: Isles, question: asked.Question) -> str:
    """The facts that are asked for, in one sentence of one form."""
    (island,) = {island for island, _ in question.asks}
    names = {name for _, name in question.asks}
    first, *more = (attribute for attribute in world.ATTRIBUTES if attribute.name in names)
    text = f"The {first.label} of {island} is {value_of(isles, island, first)}"
    return text + "".join(f" and its {other.label} is {value_of(isles, island, other)}" for other in more) + "."


def _messages(rng: random.Random, passages: list[Passage], question: str) -> list[Message]:
    """The passages with the question, as one message or with the passages in the system message."""
    mark = rng.choice(("- ", "- ", "", "* "))
    lines = "\n".join(mark + passage.text for passage in passages)
    if rng.random() < 0.25:
        system = {"role": "system", "content": SYSTEM.format(passages=lines)}
        return [system, {"role": "user", "content": capitalise(question)}]
    text = rng.choice(PROMPTS).format(passages=lines, question=capitalise(question))
    return [{"role": "user", "content": text}]


if __name__ == "__main__":
    for reading in held_out_readings(12, "show", MAX_OTHERS):
        print(*(message["content"] for message in reading.messages), sep="\n")
        print(f"    [{reading.family}] {reading.answer}\n")
