"""Constraints: where seqs stand in grammars, what may follow, and masks filled beside the forward.

    begin (before the forward) ─▶ a worker fills masks ─▶ apply (when there are logits) ─▶ follow (tokens chosen)

It knows no grammar language and does not compile; an exception in a matcher fails its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.counting import call_plugin
from quire.engine.openings import Gate, Opening
from quire.errors import BadRequest, PluginFailed, QuireError, Told
from quire.records import Grammar, Matcher, Registry
from quire.structured import PARAM
from quire_kernels.sampling import MaskLogits

MAX_JUMP = 256
"""Forced tokens that a seq is given at once."""
TOKENS_AHEAD = 50
"""Tokens whose computing time a grammar may take before they come, since the first masks build what later ones use."""


@dataclass(slots=True, eq=False)
class Cost:
    """What one grammar has cost so far, all seqs that keep to it together: seconds of a core, for so many tokens."""

    seconds: float = 0.0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Constraint:
    """One seq's place in a grammar, and the plugin that answers for it.

    gate: there until what must come before the grammar was written. ended: an end-of-text token has come.
    num_followed: output tokens that it knows of. cost: of its grammar. param: the field of the request that asked.
    """

    plugin: str
    matcher: Matcher
    gate: Gate | None = None
    cost: Cost = field(default_factory=Cost)
    param: str = PARAM
    ended: bool = False
    num_followed: int = 0

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return self.ended or (self.gate is None and self.matcher.done)


@dataclass(frozen=True, slots=True)
class Masks:
    """What may follow in some rows of a step: being filled, or there.

    rows: rows of the batch, one for each of `bits`, int32 [rows, ceil(vocab / 32)]. filling: gives what errors
    are `told` by, by row of the batch.
    """

    rows: Sequence[int]
    bits: Tensor
    filling: Future[dict[int, Told]]


class Constraints:
    """The constraints of one model's seqs.

    eos_ids: tokens that may come whenever a grammar says that the text may end; matchers never see them.
    tokenizer: gives the text side's, for constraints that begin after a text. token_time_s: seconds of a core that a
    grammar may take for each token on average; one that takes more slows every other seq, and is followed no further.
    """

    def __init__(
        self,
        registry: Registry,
        vocab_size: int,
        eos_ids: Collection[int] = (),
        tokenizer: Callable[[], Any] | None = None,
        token_time_s: float = 0.01,
    ) -> None:
        self._registry = registry
        self._token_time_s = token_time_s
        self._vocab_size = vocab_size
        self._width = -(-vocab_size // 32)
        self._eos_ids = sorted(eos_ids)
        self._eos_bits = [(token // 32, np.uint32(1 << token % 32)) for token in self._eos_ids]
        self._tokenizer = tokenizer
        self._worker: ThreadPoolExecutor | None = None

    def opening(self, text: str) -> Opening:
        """For constraints that begin after a text; takes a while. Raises BadRequest without a tokenizer."""
        tokenizer = self._tokenizer() if self._tokenizer else None
        if tokenizer is None:
            raise BadRequest("A constraint that begins after a text needs a model with a tokenizer.", PARAM)
        ids = range(min(self._vocab_size, tokenizer.vocab_size))
        return Opening.of(text.encode(), map(tokenizer.token_bytes, ids))

    def start(
        self,
        plugin: str,
        grammar: Grammar,
        output_ids: Sequence[int],
        opening: Opening | None = None,
        cost: Cost | None = None,
        param: str = PARAM,
    ) -> Constraint:
        """One that has followed what the seq wrote so far. Raises QuireError if the plugin fails."""
        matcher: Matcher = call_plugin(self._registry, plugin, grammar.start)
        gate = None if opening is None else Gate(opening)
        constraint = Constraint(plugin, matcher, gate, cost or Cost(), param)
        self.catch_up(constraint, output_ids)
        return constraint

    def catch_up(self, constraint: Constraint, output_ids: Sequence[int]) -> None:
        """Follow those of a seq's output tokens that it does not know yet. Raises QuireError if the plugin fails."""
        for token in output_ids[constraint.num_followed :]:
            self.follow(constraint, token)

    def advance(self, constraint: Constraint, token: int, jumps: bool) -> tuple[list[int], bool]:
        """Follow a new token, and those that it forces if it `jumps`: these, and whether nothing may follow.

        Raises QuireError if the plugin fails.
        """
        begin = thread_time()
        try:
            self.follow(constraint, token)
            return (self.jump(constraint) if jumps else []), constraint.done
        finally:
            constraint.cost.seconds += thread_time() - begin

    def follow(self, constraint: Constraint, token: int) -> None:
        """Tell the matcher of a new token. Raises PluginFailed if it refuses what its own mask allowed."""
        constraint.num_followed += 1
        constraint.cost.tokens += 1
        if token in self._eos_ids:
            constraint.ended = True
        elif constraint.gate is not None:
            assert self._tokenizer is not None, "a gate needs the texts of tokens"
            if constraint.gate.passes(self._tokenizer().token_bytes(token)):
                constraint.gate = None
        elif not call_plugin(self._registry, constraint.plugin, constraint.matcher.accept, token):
            raise PluginFailed(
                f"The grammar of plugin {constraint.plugin!r} refused token {token}, which it had allowed."
            )

    def jump(self, constraint: Constraint) -> list[int]:
        """Follow the tokens that must come next whatever the model says. Raises QuireError if the plugin fails."""
        if constraint.gate is not None or constraint.done:
            return []
        tokens = list(call_plugin(self._registry, constraint.plugin, constraint.matcher.forced)[:MAX_JUMP])
        for token in tokens:
            self.follow(constraint, token)
        return tokens

    def begin(self, held: Sequence[tuple[int, Constraint]]) -> Masks | None:
        """Begin to fill the masks of rows of a batch; None if nothing constrains them yet.

        Until `apply` nobody may touch the constraints.
        """
        held = [(row, one) for row, one in held if one.gate is None or len(one.gate.forbidden())]
        if not held:
            return None
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="quire-masks")
        bits = torch.empty(len(held), self._width, dtype=torch.int32)
        return Masks([row for row, _ in held], bits, self._worker.submit(self._fill, bits, held))

    def apply(self, logits: Tensor, masks: Masks, mask_logits: MaskLogits) -> tuple[Tensor, dict[int, Told]]:
        """Forbid in `logits` [rows, vocab], which may be overwritten, what grammars do; and what went wrong, by row."""
        failed = masks.filling.result()
        rows = torch.tensor(masks.rows)
        return mask_logits(logits, masks.bits.to(logits.device), rows.to(logits.device)), failed

    @torch.inference_mode()
    def _fill(self, bits: Tensor, held: Sequence[tuple[int, Constraint]]) -> dict[int, Told]:
        failed: dict[int, Told] = {}
        words = bits.numpy().view(np.uint32)
        for i, (row, constraint) in enumerate(held):
            if constraint.gate is not None:
                _forbid(words[i], constraint.gate.forbidden())
                continue
            begin = thread_time()
            try:
                self._check_cost(constraint)
                complete = call_plugin(self._registry, constraint.plugin, _fill_one, constraint.matcher, bits[i])
            except QuireError as error:
                failed[row] = error.told
                continue
            finally:
                constraint.cost.seconds += thread_time() - begin
            for word, bit in self._eos_bits:
                words[i, word] = words[i, word] | bit if complete else words[i, word] & ~bit
        return failed

    def _check_cost(self, constraint: Constraint) -> None:
        """Raise BadRequest for a grammar that takes too long. It is time of a core: what others do does not count."""
        cost = constraint.cost
        if cost.seconds > self._token_time_s * (cost.tokens + TOKENS_AHEAD):
            raise BadRequest(
                f"The constraint took {1000 * cost.seconds:.0f} ms to compute for {cost.tokens} tokens, more than "
                f"{1000 * self._token_time_s:g} ms a token (--structured-outputs-token-time-s): it slows every other "
                "request, and is not followed any further.",
                constraint.param,
            )

    def close(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            self._worker.shutdown(wait=False)


def _forbid(words: np.ndarray, ids: np.ndarray) -> None:
    """Fill a mask, uint32 [ceil(vocab / 32)], with all but some ids, int64."""
    words[:] = 0xFFFFFFFF
    np.bitwise_and.at(words, ids // 32, ~(np.uint32(1) << (ids % 32).astype(np.uint32)))


def _fill_one(matcher: Matcher, mask: Tensor) -> bool:
    """Fill a mask; whether the text may end there."""
    matcher.fill(mask)
    return matcher.complete
