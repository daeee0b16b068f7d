"""Follows sequences in their grammars and masks the tokens that these forbid; masks are filled during the forward.

    start_fill (before the forward) ─▶ thread fills masks ─▶ apply (to the logits) ─▶ accept (chosen tokens)

An exception in a matcher fails only its own row.
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

from quire.engine.structured.start_trigger import StartTrigger, TriggerProgress
from quire.errors import BadRequest, PluginFailed, QuireError, WireError
from quire.hooks.call_stats import call_plugin
from quire.params.structured import PARAM
from quire.records import Grammar, Matcher, Registry
from quire_kernels.sampling import MaskLogits

MAX_JUMP = 256
"""Tokens that a sequence is given at once by jump-forward decoding."""
TOKENS_AHEAD = 50
"""Tokens whose time a grammar may use in advance, because its first masks build caches that later masks use."""


@dataclass(slots=True, eq=False)
class MaskCost:
    """The cost of one grammar so far, over all its sequences. seconds: CPU time. tokens: those accepted.

    draft_seconds: CPU time for drafts beside that; it only decides whether there are more drafts.
    """

    seconds: float = 0.0
    tokens: int = 0
    draft_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Constraint:
    """The state of one sequence in a grammar. plugin: whose matcher it is.

    trigger: the text that has to be generated before the grammar starts; None afterwards. cost: of the grammar.
    param: the field of the request that errors name. has_ended: an end-of-text token was generated.
    num_accepted: output tokens that were accepted. grammar, begin: whose matcher it is and the trigger that it began
    with, to begin again.
    """

    plugin: str
    matcher: Matcher
    trigger: TriggerProgress | None = None
    cost: MaskCost = field(default_factory=MaskCost)
    param: str = PARAM
    has_ended: bool = False
    num_accepted: int = 0
    grammar: Grammar | None = None
    begin: StartTrigger | None = None

    @property
    def is_terminated(self) -> bool:
        """Whether no token but end-of-text may follow."""
        return self.has_ended or (self.trigger is None and self.matcher.is_terminated)


@dataclass(frozen=True, slots=True)
class PendingBitmask:
    """The masks of some rows of a step, which a thread fills.

    rows: the batch row of each row of `bits`, int32 [rows, ceil(vocab / 32)]. filling: done when the masks are filled;
    its result is the errors by batch row.
    """

    rows: Sequence[int]
    bits: Tensor
    filling: Future[dict[int, WireError]]


class ConstraintTracker:
    """The constraints of one model's sequences.

    eos_ids: tokens that are allowed whenever a grammar allows the text to end; matchers never see them.
    tokenizer: returns the text side's tokenizer, for constraints with a start trigger. token_time_s: limit of a
    grammar's average CPU time per token in seconds. A grammar over this limit fails, since it slows all sequences.
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

    def make_trigger(self, text: str) -> StartTrigger:
        """The trigger for constraints that start after a text. Slow. Raises BadRequest without a tokenizer."""
        tokenizer = self._tokenizer() if self._tokenizer else None
        if tokenizer is None:
            raise BadRequest("A constraint that starts after a text needs a model with a tokenizer.", PARAM)
        ids = range(min(self._vocab_size, tokenizer.vocab_size))
        return StartTrigger.from_text(text.encode(), map(tokenizer.token_bytes, ids))

    def start(
        self,
        plugin: str,
        grammar: Grammar,
        output_ids: Sequence[int],
        trigger: StartTrigger | None = None,
        cost: MaskCost | None = None,
        param: str = PARAM,
    ) -> Constraint:
        """A constraint that has accepted the output so far. Raises QuireError if the plugin fails."""
        matcher: Matcher = call_plugin(self._registry, plugin, grammar.start)
        progress = None if trigger is None else TriggerProgress(trigger)
        constraint = Constraint(plugin, matcher, progress, cost or MaskCost(), param, grammar=grammar, begin=trigger)
        self.replay(constraint, output_ids)
        return constraint

    def restart(self, constraint: Constraint, output_ids: Sequence[int]) -> None:
        """Replace a matcher of unknown state by one that has accepted the output. Raises QuireError on failure."""
        assert constraint.grammar is not None
        constraint.matcher = call_plugin(self._registry, constraint.plugin, constraint.grammar.start)
        constraint.trigger = None if constraint.begin is None else TriggerProgress(constraint.begin)
        constraint.has_ended, constraint.num_accepted = False, 0
        constraint.cost.tokens -= len(output_ids)  # they were counted before
        self.replay(constraint, output_ids)

    def replay(self, constraint: Constraint, output_ids: Sequence[int]) -> None:
        """Accept the output tokens that it has not accepted yet. Raises QuireError if the plugin fails."""
        for token in output_ids[constraint.num_accepted :]:
            self.accept(constraint, token)

    def advance(self, constraint: Constraint, token: int, jumps: bool) -> tuple[list[int], bool]:
        """Accept a new token and, if it `jumps`, the tokens that must follow it.

        Returns the latter, and whether the output must end. Raises QuireError if the plugin fails.
        """
        begin = thread_time()
        try:
            self.accept(constraint, token)
            return (self.jump_forward(constraint) if jumps else []), constraint.is_terminated
        finally:
            constraint.cost.seconds += thread_time() - begin

    def accept(self, constraint: Constraint, token: int) -> None:
        """Advance the matcher by a token. Raises PluginFailed if it rejects what its own mask allowed."""
        constraint.num_accepted += 1
        constraint.cost.tokens += 1
        if token in self._eos_ids:
            constraint.has_ended = True
        elif constraint.trigger is not None:
            assert self._tokenizer is not None, "a trigger needs the bytes of tokens"
            if constraint.trigger.append(self._tokenizer().token_bytes(token)):
                constraint.trigger = None
        elif not call_plugin(self._registry, constraint.plugin, constraint.matcher.accept, token):
            raise PluginFailed(
                f"The grammar of plugin {constraint.plugin!r} rejected token {token}, which its mask had allowed."
            )

    def jump_forward(self, constraint: Constraint) -> list[int]:
        """Accept and return the tokens that must follow whatever the logits. Raises QuireError if the plugin fails.

        (Jump-forward decoding, as in SGLang.)
        """
        if constraint.trigger is not None or constraint.is_terminated:
            return []
        tokens = list(call_plugin(self._registry, constraint.plugin, constraint.matcher.jump_forward)[:MAX_JUMP])
        for token in tokens:
            self.accept(constraint, token)
        return tokens

    def probe(self, constraint: Constraint, tokens: Sequence[int], max_forced: int) -> tuple[int, list[int]]:
        """How many of `tokens` the grammar would accept one after another, and what it would force after these.

        The matcher is left as it was. Nothing is accepted once the grammar has taken too long. Raises QuireError if the
        plugin fails: then the state of the matcher is unknown, and `restart` makes a new one.
        """
        cost, matcher = constraint.cost, constraint.matcher
        if constraint.trigger is not None:
            return len(tokens), []  # its text may be anything before the trigger
        if constraint.has_ended or cost.seconds + cost.draft_seconds > self._time_limit(cost):
            return 0, []
        begin = thread_time()
        try:
            return call_plugin(self._registry, constraint.plugin, _probe, matcher, tokens, self._eos_ids, max_forced)
        finally:
            cost.draft_seconds += thread_time() - begin

    def start_fill(self, constrained: Sequence[tuple[int, Constraint]]) -> PendingBitmask | None:
        """Start filling the masks of rows of a batch; None if no token is forbidden in any of them.

        The constraints must not be used until `apply`.
        """
        constrained = [
            (row, each) for row, each in constrained if each.trigger is None or len(each.trigger.forbidden_ids())
        ]
        if not constrained:
            return None
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="quire-masks")
        bits = torch.empty(len(constrained), self._width, dtype=torch.int32)
        return PendingBitmask([row for row, _ in constrained], bits, self._worker.submit(self._fill, bits, constrained))

    def apply(
        self, logits: Tensor, masks: PendingBitmask, mask_logits: MaskLogits
    ) -> tuple[Tensor, dict[int, WireError]]:
        """`logits` [rows, vocab], which may be overwritten, with forbidden tokens masked; and the errors by row."""
        failed = masks.filling.result()
        rows = torch.tensor(masks.rows)
        return mask_logits(logits, masks.bits.to(logits.device), rows.to(logits.device)), failed

    @torch.inference_mode()
    def _fill(self, bits: Tensor, constrained: Sequence[tuple[int, Constraint]]) -> dict[int, WireError]:
        failed: dict[int, WireError] = {}
        words = bits.numpy().view(np.uint32)
        for i, (row, constraint) in enumerate(constrained):
            if constraint.trigger is not None:
                _forbid(words[i], constraint.trigger.forbidden_ids())
                continue
            begin = thread_time()
            try:
                self._check_cost(constraint)
                is_accepting = call_plugin(self._registry, constraint.plugin, _fill_one, constraint.matcher, bits[i])
            except QuireError as error:
                failed[row] = error.wire
                continue
            finally:
                constraint.cost.seconds += thread_time() - begin
            for word, bit in self._eos_bits:
                words[i, word] = words[i, word] | bit if is_accepting else words[i, word] & ~bit
        return failed

    def _check_cost(self, constraint: Constraint) -> None:
        """Raise BadRequest for a grammar that takes too long. CPU time is measured, so other load does not count."""
        cost = constraint.cost
        if cost.seconds > self._time_limit(cost):
            raise BadRequest(
                f"The constraint took {1000 * cost.seconds:.0f} ms to compute for {cost.tokens} tokens, more than "
                f"{1000 * self._token_time_s:g} ms per token (--structured-outputs-token-time-s), and would slow every "
                "other request.",
                constraint.param,
            )

    def _time_limit(self, cost: MaskCost) -> float:
        return self._token_time_s * (cost.tokens + TOKENS_AHEAD)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=False)


def _forbid(words: np.ndarray, ids: np.ndarray) -> None:
    """Set a mask, uint32 [ceil(vocab / 32)], to all ids but `ids`, int64."""
    words[:] = 0xFFFFFFFF
    np.bitwise_and.at(words, ids // 32, ~(np.uint32(1) << (ids % 32).astype(np.uint32)))


def _fill_one(matcher: Matcher, mask: Tensor) -> bool:
    """Fill a mask. Returns whether the text may end here."""
    matcher.fill(mask)
    return matcher.is_accepting


def _probe(matcher: Matcher, tokens: Sequence[int], eos_ids: Collection[int], max_forced: int) -> tuple[int, list[int]]:
    """How many tokens are accepted, and the tokens forced then; afterwards all of them are rolled back."""
    count, num_accepted, forced = 0, 0, []
    for token in tokens:
        if token in eos_ids:  # matchers never see them
            count += matcher.is_accepting
            break
        if not matcher.accept(token):
            break
        count, num_accepted = count + 1, num_accepted + 1
    if count == num_accepted and max_forced and not matcher.is_terminated:
        forced = list(matcher.jump_forward()[:max_forced])
    if num_accepted:
        matcher.rollback(num_accepted)
    return count, forced
