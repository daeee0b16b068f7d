"""Drafts of one sequence, each token by the guess that was right most often."""

from __future__ import annotations

from collections.abc import Sequence

from quire_drafters.alignment.follower import Follower
from quire_drafters.alignment.right_rates import RightRates, run_class
from quire_drafters.alignment.substitutions import Substitutions

MOST_OBSERVED = 64
"""Newest tokens that are learned from at once; more come only where drafts were not wanted for long."""
OUTPUT, PROMPT, SUBSTITUTED, LONGEST = "output", "prompt", "substituted", "longest"
FIRST_ESTIMATES = {
    OUTPUT: (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    PROMPT: (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    SUBSTITUTED: (0.1, 0.3, 0.55, 0.8),
    LONGEST: (0.0, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93),
}
"""By the class of the run, or that of the substitution: of edited code and extracted JSON."""
Guess = tuple[tuple[str, int], int]
"""Its kind and class, and the token."""


class AlignedText:
    """A sequence, and what is known of how it repeats its prompt and its output.

    Four guesses are made of each token: the one that follows in the output where the output is repeated (the form of a
    record, say), the one that follows in the prompt, what was written in place of that one before, and the one after
    the longest match. The shares of right guesses depend on which of the others agree.
    """

    def __init__(self, prompt_len: int) -> None:
        self._prompt_len = prompt_len
        self._text: list[int] = []
        self._prompt, self._output = Follower(), Follower()
        self._rates, self._substitutions = RightRates(), Substitutions()
        self._chain: Sequence[int] = ()  # tokens after the longest match
        self._chain_begin = self._match_length = 0

    def observe(self, token_ids: Sequence[int]) -> None:
        """Learn from the tokens that are new."""
        text, begin = self._text, max(len(self._text), self._prompt_len)
        if len(token_ids) > begin + MOST_OBSERVED:
            begin = len(token_ids)
        text += token_ids[len(text) : begin]
        for token_id in token_ids[begin:]:
            if text:
                self._learn(token_id)
            self._step(self._prompt, self._output, token_id)

    def meet(self, in_prompt: tuple[int, int], in_output: tuple[int, int]) -> None:
        """Lengths and ends of the longest matches of the newest tokens."""
        self._prompt.meet(*in_prompt)
        self._output.meet(*in_output)

    @property
    def num_agreed(self) -> int:
        """Tokens that agree with what is followed."""
        return max(self._prompt.num_agreed, self._output.num_agreed)

    def draft(
        self, chain: Sequence[int], match_length: int, most: int, least_chance: float
    ) -> tuple[list[int], list[float]]:
        """Tokens, and the probability that each of them and all before it are right, at least `least_chance`.

        chain: tokens after the longest match, which has so many tokens.
        """
        text, size = self._text, len(self._text)
        self._chain, self._chain_begin, self._match_length = chain, size, match_length
        prompt, output, chances, chance = self._prompt.copy(), self._output.copy(), list[float](), 1.0
        while len(chances) < most:
            guesses, context = self._guesses(prompt, output)
            found = [(self._rate(kind, token_id, context), token_id) for kind, token_id in guesses]
            rate, token_id = max(found, default=(0.0, 0), key=_first)
            chance *= rate
            if chance < least_chance:
                break
            chances.append(chance)
            self._step(prompt, output, token_id)
        drafts = text[size:]
        del text[size:]
        return drafts, chances

    def _learn(self, token_id: int) -> None:
        guesses, context = self._guesses(self._prompt, self._output)
        for kind, guess in guesses:
            self._rates.add(kind, _context(context, guess), guess == token_id)
        if 0 <= self._prompt.next < self._prompt_len:
            self._substitutions.add(self._text[-1], self._text[self._prompt.next], token_id)

    def _step(self, prompt: Follower, output: Follower, token_id: int) -> None:
        text = self._text
        prompt.step(text, token_id, self._prompt_len)
        output.step(text, token_id, len(text))
        text.append(token_id)

    def _guesses(self, prompt: Follower, output: Follower) -> tuple[list[Guess], tuple[int, int, int]]:
        """Guesses of the next token, and their context: the tokens of output and prompt, and the class of the
        substitution; -1 = none."""
        text, guesses, context = self._text, list[Guess](), [-1, -1, -1]
        if output.run and output.next < len(text):
            context[0] = text[output.next]
            guesses.append(((OUTPUT, run_class(output.run)), context[0]))
        if 0 <= prompt.next < self._prompt_len:
            awaited = text[prompt.next]
            context[1] = awaited if prompt.run else -1
            if (substitution := self._substitutions.find(text[-1], awaited)) is not None:
                context[2] = substitution[1]
                guesses.append(((SUBSTITUTED, substitution[1]), substitution[0]))
            guesses.append(((PROMPT, run_class(prompt.run)), awaited))
        count = len(text) - self._chain_begin
        if 0 <= count < len(self._chain) and (not count or list(self._chain[:count]) == text[-count:]):
            guesses.append(((LONGEST, run_class(self._match_length + count)), self._chain[count]))
        return guesses, (context[0], context[1], context[2])

    def _rate(self, kind: tuple[str, int], token_id: int, context: tuple[int, int, int]) -> float:
        return self._rates.rate(kind, _context(context, token_id), FIRST_ESTIMATES[kind[0]][kind[1]])


def _context(context: tuple[int, int, int], token_id: int) -> int:
    """Which of output and prompt have a guess and agree, and the class of the substitution."""
    output, prompt, substitution = context
    of_output = 0 if output < 0 else 1 + (output == token_id)
    of_prompt = 0 if prompt < 0 else 1 + (prompt == token_id)
    return (of_output * 3 + of_prompt) * 5 + substitution + 1


def _first(found: tuple[float, int]) -> float:
    return found[0]
