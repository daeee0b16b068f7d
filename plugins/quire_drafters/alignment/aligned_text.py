"""Drafts of one sequence, each token by the guess that was right most often."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from quire_drafters.alignment.copy_place import CopyPlace
from quire_drafters.alignment.right_rates import RightRates
from quire_drafters.alignment.substitutions import Substitutions

MOST_OBSERVED = 64
"""Newest tokens that are learned from at once; more come only where drafts were not wanted for long."""
RUN_CLASSES = (0, 1, 2, 3, *[4] * 3, *[5] * 9, 6)
"""Of runs of so many tokens; the last one is that of longer ones."""
OUTPUT, PROMPT, LONGEST, SUBSTITUTED = 0, 7, 14, 21
"""Kinds of guesses, to which the class of a run, or of a substitution, is added."""
FIRST_ESTIMATES = (
    *(0.0, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93),
    *(0.2, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93),
    *(0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    *(0.1, 0.3, 0.55, 0.8),
)
"""By kind: of edited code and extracted JSON."""
Guess = tuple[int, int, int]
"""Its kind, its context (which of output and prompt have the same guess, and the class of the substitution) and the
token."""


class AlignedText:
    """A sequence, and what is known of how it repeats its prompt and its output.

    Four guesses are made of each token: the one that follows in the output where the output is repeated (the form of a
    record, say), the one that follows in the prompt, what was written in place of that one before, and the one after
    the longest match. The shares of right guesses depend on which of the others agree.
    """

    def __init__(self, prompt_len: int) -> None:
        self._prompt_len = prompt_len
        self._text: list[int] = []
        self._prompt, self._output = CopyPlace(), CopyPlace()
        self._rates, self._substitutions = RightRates(FIRST_ESTIMATES), Substitutions()
        self._chain: list[int] = []  # tokens after the longest match
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
    def longest_run(self) -> tuple[int, int]:
        """How many of the newest tokens agree with what is followed, and where that goes on."""
        best = max(self._prompt, self._output, key=attrgetter("run"))
        return best.run, best.next

    @property
    def num_agreed(self) -> int:
        """Tokens that agree with what is followed."""
        return max(self._prompt.num_agreed, self._output.num_agreed)

    def draft(
        self, chain: list[int], match_length: int, most: int, least_chance: float
    ) -> tuple[list[int], list[float]]:
        """Tokens, and the probability that each of them and all before it are right, at least `least_chance`.

        chain: tokens after the longest match, which has so many tokens.
        """
        text, size = self._text, len(self._text)
        self._chain, self._chain_begin, self._match_length = chain, size, match_length
        prompt, output, chances, chance = self._prompt.copy(), self._output.copy(), list[float](), 1.0
        rate_of = self._rates.rate
        while len(chances) < most:
            best, token_id = 0.0, -1
            for kind, context, guess in self._guesses(prompt, output):
                if (rate := rate_of(kind, context)) > best:
                    best, token_id = rate, guess
            chance *= best
            if chance < least_chance or token_id < 0:
                break
            chances.append(chance)
            self._step(prompt, output, token_id)
        drafts = text[size:]
        del text[size:]
        return drafts, chances

    def _learn(self, token_id: int) -> None:
        for kind, context, guess in self._guesses(self._prompt, self._output):
            self._rates.add(kind, context, guess == token_id)
        if 0 <= self._prompt.next < self._prompt_len:
            self._substitutions.add(self._text[-1], self._text[self._prompt.next], token_id)

    def _step(self, prompt: CopyPlace, output: CopyPlace, token_id: int) -> None:
        text = self._text
        prompt.step(text, token_id, self._prompt_len)
        output.step(text, token_id, len(text))
        text.append(token_id)

    def _guesses(self, prompt: CopyPlace, output: CopyPlace) -> list[Guess]:
        """Guesses of the next token."""
        text, found = self._text, list[tuple[int, int]]()
        repeated = awaited = -1
        context = 0
        if output.run and output.next < len(text):
            repeated = text[output.next]
            found.append((OUTPUT + run_class(output.run), repeated))
        if 0 <= prompt.next < self._prompt_len:
            guess = text[prompt.next]
            found.append((PROMPT + run_class(prompt.run), guess))
            substitution = self._substitutions.find(text[-1], guess)
            if substitution is not None:
                context = 1 + substitution[1]
                found.append((SUBSTITUTED + substitution[1], substitution[0]))
            if prompt.run:
                awaited = guess
        count = len(text) - self._chain_begin
        if count < len(self._chain) and (not count or self._chain[:count] == text[-count:]):
            found.append((LONGEST + run_class(self._match_length + count), self._chain[count]))
        if repeated >= 0:
            context += 5
        if awaited >= 0:
            context += 15
        return [(kind, context + 5 * (guess == repeated) + 15 * (guess == awaited), guess) for kind, guess in found]


def run_class(run: int) -> int:
    """From 0 to 6."""
    return RUN_CLASSES[run] if run < len(RUN_CLASSES) else RUN_CLASSES[-1]
