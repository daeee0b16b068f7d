"""Conformance of structured-output back ends: random walks through the tokens that a grammar allows."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.params.structured import StructuredSpec
from quire.records import Context, Grammar, GrammarBackend, Matcher
from quire_testing.require import require


def check_grammar_backend(
    record: GrammarBackend,
    kind: str,
    source: str,
    *,
    tokenizer: Any,
    wrong_source: str | None = None,
    options: Mapping[str, Any] | None = None,
    walks: int = 8,
    max_tokens: int = 64,
) -> None:
    """On random walks, `accept` agrees with the mask, `jump_forward` with both, and `rollback` undoes `accept`.

    kind, source: a constraint. wrong_source: an invalid one, which must raise BadRequest.
    tokenizer: a `quire.text.tokenizer.tokenizer.Tokenizer`, such as that of `quire_testing.byte_tokenizer`.
    """
    require(kind in record.kinds, f"{record.name} declares {sorted(record.kinds)}, not {kind!r}.")
    context = Context(options=options or {}, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer)
    backend = record.build(context)
    grammar = _compiled(record, backend, StructuredSpec(kind=kind, source=source))
    for seed in range(walks):
        _walk(grammar, random.Random(seed), tokenizer.vocab_size, max_tokens)
    if wrong_source is not None:
        _refuses(record, backend, StructuredSpec(kind=kind, source=wrong_source))


def _compiled(record: GrammarBackend, backend: Any, asked: StructuredSpec) -> Grammar:
    """The grammar of a constraint, by the calls that Quire makes; all of them in this process."""
    needs_process = getattr(backend, "needs_process", None)
    if needs_process is None or not needs_process(asked):
        require(not record.isolated, f"{record.name} is isolated, so needs_process must be true for every constraint.")
        made: Grammar = backend.compile(asked)
        return made
    pickle.dumps(record.build)
    backend.warm_up()
    loaded: Grammar = backend.load(pickle.loads(pickle.dumps(backend.compile_in_worker(asked))))
    return loaded


def _refuses(record: GrammarBackend, backend: Any, asked: StructuredSpec) -> None:
    try:
        _compiled(record, backend, asked)
    except BadRequest:
        return
    raise AssertionError(f"compile must raise BadRequest for {asked.source!r:.80}.")


def _walk(grammar: Grammar, rng: random.Random, vocab_size: int, max_tokens: int) -> None:
    matcher, beside = grammar.start(), grammar.start()
    untouched = _mask(beside, vocab_size)
    seen = [_mask(matcher, vocab_size)]
    taken: list[int] = []
    while not matcher.is_terminated and len(seen) <= max_tokens:
        allowed = seen[-1].nonzero().flatten().tolist()
        require(allowed, "The mask allows no token, but is_terminated is False.")
        _check_accept(matcher, seen[-1], rng)
        _check_jump_forward(matcher, vocab_size)
        taken.append(rng.choice(allowed))
        require(matcher.accept(taken[-1]), "accept refused a token that the mask allows.")
        seen.append(_mask(matcher, vocab_size))
    if matcher.is_terminated:
        require(matcher.is_accepting, "is_terminated is True, so is_accepting must be True; it is False.")
        require(not seen[-1].any(), "is_terminated is True, but the mask allows a token.")
    require(torch.equal(_mask(beside, vocab_size), untouched), "One matcher changed another of the same grammar.")
    done = matcher.is_terminated
    _check_rollback(matcher, seen, rng)
    for token_id, mask in zip(taken, seen[1:], strict=True):
        again = matcher.accept(token_id) and torch.equal(_mask(matcher, vocab_size), mask)
        require(again, "After rollback to the beginning, the same tokens lead to another state.")
    require(matcher.is_terminated == done, "After rollback to the beginning, the same tokens lead to another end.")


def _check_accept(matcher: Matcher, mask: Tensor, rng: random.Random) -> None:
    """Try a sample of ids, so that a large vocabulary does not take long."""
    for token_id in rng.sample(range(len(mask)), min(64, len(mask))):
        accepted = matcher.accept(token_id)
        require(
            accepted == bool(mask[token_id]),
            f"Token {token_id}: the mask says {bool(mask[token_id])}, accept says {accepted}.",
        )
        if accepted:
            matcher.rollback(1)
        require(
            torch.equal(_mask(matcher, len(mask)), mask),
            f"After token {token_id} and rollback(1) the matcher has another state.",
        )


def _check_jump_forward(matcher: Matcher, vocab_size: int) -> None:
    forced = list(matcher.jump_forward())
    for token_id in forced:
        allowed = _mask(matcher, vocab_size).nonzero().flatten().tolist()
        require(allowed == [token_id], f"Token {token_id} is in jump_forward, but the mask allows {allowed[:8]}.")
        require(matcher.accept(token_id), f"accept refused token {token_id}, which is in jump_forward.")
    if forced:
        matcher.rollback(len(forced))


def _check_rollback(matcher: Matcher, seen: list[Tensor], rng: random.Random) -> None:
    at = len(seen) - 1
    while at > 0:
        count = rng.randint(1, at)
        matcher.rollback(count)
        at -= count
        require(torch.equal(_mask(matcher, len(seen[0])), seen[at]), f"rollback({count}) led to another state.")


def _mask(matcher: Matcher, vocab_size: int) -> Tensor:
    """The allowed ids, bool [vocab]; they must not depend on the previous contents of the mask."""
    mask = torch.zeros(-(-vocab_size // 32), dtype=torch.int32)
    matcher.fill(mask)
    again = torch.full_like(mask, -1)
    matcher.fill(again)
    require(torch.equal(mask, again), "fill must set every entry of the mask.")
    bits = mask[:, None] >> torch.arange(32) & 1
    require(not bits.flatten()[vocab_size:].any(), "fill allowed an id beyond the vocabulary.")
    return bits.flatten()[:vocab_size].bool()
