"""Conformance of structured-output back ends: random walks through what a grammar allows."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.records import Context, Grammar, GrammarBackend, Matcher
from quire.structured import Structured
from quire.testing.demand import demand


def check_grammar(
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
    """What the mask allows is exactly what `accept` takes, along random walks; what is forced is; `rollback` undoes.

    kind, source: a constraint to try. wrong_source: one that must be refused with BadRequest.
    tokenizer: a `quire.text.tokenizer.Tokenizer`, such as that of `quire.testing.byte_tokenizer`.
    """
    demand(kind in record.kinds, f"{record.name} declares {sorted(record.kinds)}, not {kind!r}.")
    context = Context(options=options or {}, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer)
    backend = record.build(context)
    grammar = _compiled(record, backend, Structured(kind=kind, source=source))
    for seed in range(walks):
        _walk(grammar, random.Random(seed), tokenizer.vocab_size, max_tokens)
    if wrong_source is not None:
        _refuses(backend, Structured(kind=kind, source=wrong_source))


def _compiled(record: GrammarBackend, backend: Any, asked: Structured) -> Grammar:
    """What the back end makes of it, as the host would have it."""
    if not record.isolated:
        made: Grammar = backend.compile(asked)
        return made
    pickle.dumps(record.build)
    restored: Grammar = backend.restore(pickle.loads(pickle.dumps(backend.compile(asked))))
    return restored


def _refuses(backend: Any, asked: Structured) -> None:
    try:
        backend.compile(asked)
    except BadRequest:
        return
    raise AssertionError(f"compile must raise BadRequest for {asked.source!r:.80}.")


def _walk(grammar: Grammar, rng: random.Random, vocab_size: int, max_tokens: int) -> None:
    matcher, beside = grammar.start(), grammar.start()
    untouched = _mask(beside, vocab_size)
    seen = [_mask(matcher, vocab_size)]
    taken: list[int] = []
    while not matcher.done and len(seen) <= max_tokens:
        allowed = seen[-1].nonzero().flatten().tolist()
        demand(allowed, "The mask allows nothing although the matcher is not done.")
        _agrees(matcher, seen[-1], rng)
        _forces(matcher, vocab_size)
        taken.append(rng.choice(allowed))
        demand(matcher.accept(taken[-1]), "accept refused a token that the mask allows.")
        seen.append(_mask(matcher, vocab_size))
    if matcher.done:
        demand(matcher.complete, "Nothing may follow, so the text must be allowed to end here: complete is False.")
        demand(not seen[-1].any(), "The matcher is done, but its mask allows a token.")
    demand(torch.equal(_mask(beside, vocab_size), untouched), "One matcher changed another of the same grammar.")
    done = matcher.done
    _takes_back(matcher, seen, rng)
    for token_id, mask in zip(taken, seen[1:], strict=True):
        again = matcher.accept(token_id) and torch.equal(_mask(matcher, vocab_size), mask)
        demand(again, "After rollback to the beginning, the same tokens lead to another state.")
    demand(matcher.done == done, "After rollback to the beginning, the same tokens lead to another end.")


def _agrees(matcher: Matcher, mask: Tensor, rng: random.Random) -> None:
    """Some ids of either kind, so that a large vocabulary stays quick."""
    for token_id in rng.sample(range(len(mask)), min(64, len(mask))):
        accepted = matcher.accept(token_id)
        demand(
            accepted == bool(mask[token_id]),
            f"Token {token_id}: the mask says {bool(mask[token_id])}, accept says {accepted}.",
        )
        if accepted:
            matcher.rollback(1)
        demand(
            torch.equal(_mask(matcher, len(mask)), mask), f"Trying token {token_id} and taking it back left a trace."
        )


def _forces(matcher: Matcher, vocab_size: int) -> None:
    forced = list(matcher.forced())
    for token_id in forced:
        allowed = _mask(matcher, vocab_size).nonzero().flatten().tolist()
        demand(allowed == [token_id], f"Token {token_id} is said to be forced, but the mask allows {allowed[:8]}.")
        demand(matcher.accept(token_id), f"accept refused token {token_id}, which is said to be forced.")
    if forced:
        matcher.rollback(len(forced))


def _takes_back(matcher: Matcher, seen: list[Tensor], rng: random.Random) -> None:
    at = len(seen) - 1
    while at > 0:
        count = rng.randint(1, at)
        matcher.rollback(count)
        at -= count
        demand(torch.equal(_mask(matcher, len(seen[0])), seen[at]), f"rollback({count}) led to another state.")


def _mask(matcher: Matcher, vocab_size: int) -> Tensor:
    """Which ids the matcher allows, bool [vocab]; what the mask held before must not matter."""
    mask = torch.zeros(-(-vocab_size // 32), dtype=torch.int32)
    matcher.fill(mask)
    again = torch.full_like(mask, -1)
    matcher.fill(again)
    demand(torch.equal(mask, again), "fill must set every entry of the mask.")
    bits = mask[:, None] >> torch.arange(32) & 1
    demand(not bits.flatten()[vocab_size:].any(), "fill allowed an id beyond the vocabulary.")
    return bits.flatten()[:vocab_size].bool()
