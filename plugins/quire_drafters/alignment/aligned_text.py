"""Drafts of one sequence, each token by the guess that was right most often."""

from __future__ import annotations

from collections.abc import Sequence

from quire_drafters.alignment.copy_place import CopyPlace
from quire_drafters.alignment.right_rates import CONTEXTS, RightRates
from quire_drafters.alignment.substitutions import Substitutions

MAX_OBSERVED = 64
"""Newest tokens that are learned from at once; more come only where drafts were not wanted for long."""
RUN_CLASSES = (0, 1, 2, 3, *[4] * 3, *[5] * 9, 6)
"""Of runs of so many tokens; the last one is that of longer ones."""
LONG = len(RUN_CLASSES) - 1
OUTPUT, PROMPT, LONGEST = ([CONTEXTS * (first + each) for each in RUN_CLASSES] for first in (0, 7, 14))
SUBSTITUTED = [CONTEXTS * (21 + each) for each in range(4)]
"""Kinds of guesses, by the run or the class of the substitution, as places of their rates in the context 0."""
REPEATED, AWAITED = 5, 15
"""Added to the context where the output or the prompt goes on with a guess, and once more if it is this one."""
NONE = -1
FIRST_ESTIMATES = (
    *(0.0, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93),
    *(0.2, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93),
    *(0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    *(0.1, 0.3, 0.55, 0.8),
)
"""By kind: of edited code and extracted JSON."""
Guess = tuple[int, int]
"""The place of its rate, by its kind and its context (which of output and prompt have the same guess, and the class of
the substitution), and the token."""


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
        self._ahead: list[tuple[list[Guess], int]] = []  # guesses of the tokens that come, while these are the drafts
        self._chain: list[int] = []  # tokens after the longest match
        self._chain_begin = self._match_length = 0

    def observe(self, token_ids: Sequence[int]) -> None:
        """Learn from the tokens that are new."""
        text, begin = self._text, max(len(self._text), self._prompt_len)
        if len(token_ids) > begin + MAX_OBSERVED:
            begin = len(token_ids)
        if begin > len(text):
            text += token_ids[len(text) : begin]
            self._ahead = []
        ahead, prompt, output, prompt_len = self._ahead, self._prompt, self._output, self._prompt_len
        for i, token_id in enumerate(token_ids[begin:]):
            if i < len(ahead):
                guesses, drafted = ahead[i]
                if drafted != token_id:
                    ahead = []
            else:
                guesses = self._guesses(prompt, output) if text else []
            for place, guess in guesses:
                self._rates.add(place, guess == token_id)
            if text and 0 <= prompt.next < prompt_len:
                self._substitutions.add(text[-1], text[prompt.next], token_id)
            prompt.step(text, token_id, prompt_len)
            output.step(text, token_id, len(text))
            text.append(token_id)
        self._ahead = []

    def meet(self, in_prompt: tuple[int, int], in_output: tuple[int, int]) -> None:
        """Lengths and ends of the longest matches of the newest tokens."""
        self._prompt.meet(*in_prompt)
        self._output.meet(*in_output)

    @property
    def longest_run(self) -> tuple[int, int]:
        """How many of the newest tokens agree with what is followed, and where that goes on."""
        best = self._output if self._output.run > self._prompt.run else self._prompt
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
        rate_of, known, prompt_len = self._rates.rate, dict[int, float](), self._prompt_len
        self._ahead = ahead = list[tuple[list[Guess], int]]()
        while len(chances) < most:
            best, token_id, guesses = 0.0, NONE, self._guesses(prompt, output)
            for place, guess in guesses:
                if (rate := known.get(place, -1.0)) < 0.0:  # rates do not change while a draft is made
                    rate = known[place] = rate_of(place)
                if rate > best:
                    best, token_id = rate, guess
            chance *= best
            ahead.append((guesses, token_id))
            if chance < least_chance or token_id < 0:
                break
            chances.append(chance)
            prompt.step(text, token_id, prompt_len)
            output.step(text, token_id, len(text))
            text.append(token_id)
        drafts = text[size:]
        del text[size:]
        return drafts, chances

    def _guesses(self, prompt: CopyPlace, output: CopyPlace) -> list[Guess]:
        """Guesses of the next token."""
        text, run = self._text, output.run
        size, followed = len(text), prompt.next
        found, context, repeated, awaited = list[Guess](), 0, NONE, NONE
        if run and output.next < size:
            repeated, context = text[output.next], REPEATED
        substitution = None
        if 0 <= followed < self._prompt_len:
            guess = text[followed]
            substitution = self._substitutions.find(text[-1], guess)
            if substitution is not None:
                context += 1 + substitution[1]
            if prompt.run:
                awaited, context = guess, context + AWAITED
            place = PROMPT[min(prompt.run, LONG)] + context + REPEATED * (guess == repeated)
            found.append((place + AWAITED * (awaited >= 0), guess))
        if repeated >= 0:
            found.insert(0, (OUTPUT[min(run, LONG)] + context + REPEATED + AWAITED * (repeated == awaited), repeated))
        if substitution is not None:
            guess, class_ = substitution
            place = SUBSTITUTED[class_] + context + REPEATED * (guess == repeated)
            found.append((place + AWAITED * (guess == awaited), guess))
        chain, count = self._chain, size - self._chain_begin
        if count < len(chain) and (not count or chain[:count] == text[-count:]):
            guess = chain[count]
            place = LONGEST[min(self._match_length + count, LONG)] + context + REPEATED * (guess == repeated)
            found.append((place + AWAITED * (guess == awaited), guess))
        return found
