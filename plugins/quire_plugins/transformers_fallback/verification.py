"""Computes a few tokens in several ways, to refuse a model whose results depend on how its tokens are batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire.errors import CheckpointError, QuireError
from quire_models.testing import ChunkSpec, ModelDriver
from quire_plugins.transformers_fallback.pictures.verification import difference_with_picture

if TYPE_CHECKING:
    from quire_plugins.transformers_fallback.part import TransformersPart

TOLERANCES = {torch.float32: 0.01}
"""Largest relative difference by data type: rounding, and experts that it changes."""

OTHER_TOLERANCE = 0.15

ROUNDING = 1e-4
"""Relative difference that is rounding, whatever the data type."""


@torch.inference_mode()
def verify(model: Any, part: TransformersPart) -> None:
    """Raise CheckpointError if tokens have other hidden states in parts, or beside others, than alone."""
    first, second = _tokens(part.vocab, 9), _tokens(part.vocab, 5)[::-1]
    alone = _hidden(model, part, [first], [[ChunkSpec(0, 9)]])
    by_itself = _unbatched(model, first)
    if part.non_causal:
        steps = [[ChunkSpec(1, 5), ChunkSpec(0, 9)]]
    else:
        steps = [[ChunkSpec(0, 4), ChunkSpec(1, 3)], [ChunkSpec(1, 2), ChunkSpec(0, 5)]]
    beside = _hidden(model, part, [first, second], steps)
    if model.keeping:
        beside = _with_state(model, part, [first, second], steps, alone, beside)
    tolerance = TOLERANCES.get(model.dtype, OTHER_TOLERANCE)
    for what, other in (("in parts beside other texts", beside), ("with positions of its own", by_itself)):
        if _difference(alone, other) > tolerance:
            raise CheckpointError(
                f"transformers has {part.found.name}, but its model cannot run over pages of a KV cache: computed "
                f"{what}, a text has other results than alone."
            )


@torch.inference_mode()
def verify_pictures(model: Any, part: TransformersPart) -> None:
    """Raise CheckpointError if a text with a picture has other hidden states than one with the picture's rows."""
    assert part.pictures is not None
    try:
        difference = difference_with_picture(model, part.pictures)
        if difference > TOLERANCES.get(model.dtype, OTHER_TOLERANCE):
            raise CheckpointError("the model computes more of a picture than rows in the place of its tokens")
    except QuireError as error:
        raise CheckpointError(
            f"transformers has {part.found.name}, but its pictures cannot be computed: {error.message}."
        ) from error


def _with_state(model: Any, part: TransformersPart, seqs: Any, steps: Any, alone: Tensor, at_once: Tensor) -> Tensor:
    """The hidden states in parts with modules that read their state as they must: for several tokens at once, or, if
    they read it for one token only, token by token.
    """
    for module in model.keeping:
        module.by_token = True
    by_token = _hidden(model, part, seqs, steps)
    if _worst(alone, at_once) > max(4 * _worst(alone, by_token), ROUNDING):
        return by_token
    for module in model.keeping:
        module.by_token = False
    return at_once


def _tokens(vocab: int, count: int) -> list[int]:
    return [(7 + 131 * i) % vocab for i in range(count)]


def _hidden(
    model: Any, part: TransformersPart, seqs: Sequence[Sequence[int]], steps: Sequence[Sequence[ChunkSpec]]
) -> Tensor:
    """Hidden states [tokens, width] of the first seq."""
    driver = ModelDriver(model, part, seqs)
    found = []
    for chunks in steps:
        states = model(driver.forward(chunks)).split([chunk.count for chunk in chunks])
        found += [state.clone() for chunk, state in zip(chunks, states, strict=True) if chunk.seq == 0]
    return torch.cat(found)


def _unbatched(model: Any, tokens: Sequence[int]) -> Tensor:
    """Hidden states of a seq for which the model finds the positions itself."""
    driver = ModelDriver(model, model.part, [tokens])
    forward = driver.forward([ChunkSpec(0, len(tokens))])
    model.step.begin(forward)
    hidden: Tensor = model.body(input_ids=forward.tokens[None], use_cache=False)[0][0]
    return hidden


def _difference(states: Tensor, others: Tensor) -> float:
    """The median over tokens of the relative difference: a token that was sent to another expert counts little."""
    states, others = states.float(), others.float()
    scale = states.norm(dim=-1).clamp(min=1e-6)
    return float(((states - others).norm(dim=-1) / scale).median())


def _worst(states: Tensor, others: Tensor) -> float:
    """The largest relative difference of a token."""
    states, others = states.float(), others.float()
    return float(((states - others).norm(dim=-1) / states.norm(dim=-1).clamp(min=1e-6)).max())
