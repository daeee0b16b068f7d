"""Options of attention that only some models use, compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from quire_kernels import reference
from quire_kernels.attention import HeadGroups, PositionBiases, Stripes
from quire_testing.ops.attention_cases import rows_of, with_lookahead
from quire_testing.ops.cases import RandomInputs

SHAPES = [(4, 4, 16, 16), (6, 2, 24, 8), (4, 2, 32, 64), (16, 1, 96, None)]
"""Query heads, key-value heads, width of keys and of values; None: the first 80 elements of the keys."""
STEPS = [((1,), (1,)), ((1, 1, 1), (1, 9, 140)), ((5, 1, 8, 3), (5, 117, 31, 3)), ((40, 1), (300, 70))]
"""Tokens and contexts of rows."""
UNEVEN = [(5, 2, 16, 16, 3, 0), (9, 3, 32, 64, 5, 4), (23, 3, 24, 8, 9, 3)]
"""Likewise, then the query heads of a whole group, and how many of the first group another rank has."""
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def options(draw: RandomInputs, heads: int) -> Iterator[dict[str, Any]]:
    def numbers(scale: float) -> Tensor:
        return draw(heads, dtype=torch.float32) * scale

    yield {}
    yield {"sinks": numbers(3.0)}
    yield {"sinks": numbers(60.0)}
    yield {"slopes": numbers(0.3).abs()}
    yield {"biases": PositionBiases(draw(heads, 2 * 20 + 1, dtype=torch.float32))}
    yield {"biases": PositionBiases(draw(heads, 2 * 128 + 1, dtype=torch.float32)), "softcap": 5.0}
    yield {"stripes": Stripes(16, 1, 3, 1)}
    yield {"stripes": Stripes(64, 2, 2), "sinks": numbers(1.0)}
    yield {"stripes": Stripes(24, 1, 2, 1, 3), "softcap": 5.0}
    yield {"chunk": 7}
    yield {"chunk": 64}
    yield {"window": 20, "sinks": numbers(1.0)}
    yield {"softcap": 5.0, "slopes": numbers(0.1).abs(), "sinks": numbers(9.0)}


def check_options(
    ops: Any,
    dtype: torch.dtype,
    device: str = "cpu",
    steps: Sequence[Any] = STEPS,
    shapes: Sequence[Any] = (*SHAPES, *UNEVEN),
    chosen: slice = slice(None),
) -> None:
    """The options and widths of values. ops: with `paged_attention` and `write_kv`. Raises AssertionError."""
    draw = RandomInputs(dtype, torch.device(device), torch.Generator().manual_seed(1))
    kept = _answers(dtype, device, repr((steps, shapes)))
    for lens, contexts in steps:
        for heads, kv_heads, dim, width, *groups in shapes:
            rows, pages = rows_of(draw, lens, contexts)
            value_dim = 80 if width is None else None
            k, v = draw(pages * 16, kv_heads, dim), None if width is None else draw(pages * 16, kv_heads, width)
            plain, mine = (_pools(pages, kv_heads, dim, width or 0, k) for _ in range(2))
            slots = torch.arange(pages * 16, device=device)
            reference.write_kv(k, v, *plain, slots)
            ops.write_kv(k, v, *mine, slots)
            q = draw(sum(lens), heads, dim)
            uneven: dict[str, Any] = {"groups": HeadGroups(*groups)} if groups else {}
            for number, given in list(enumerate(options(draw, heads)))[chosen]:
                seen = [rows, with_lookahead(rows, draw.ids(3, sum(lens)))] if not given else [rows]
                for ahead, each in enumerate(seen):
                    case = lens, contexts, heads, kv_heads, dim, width, *groups, number, ahead
                    if case not in kept:
                        floats = (pool.float() for pool in plain)
                        kept[case] = reference.paged_attention(
                            q.float(), *floats, each, dim**-0.5, value_dim=value_dim, **uneven, **given
                        )
                    wanted = kept[case]
                    found = ops.paged_attention(q, *mine, each, dim**-0.5, value_dim=value_dim, **uneven, **given)
                    assert (found.shape, found.dtype) == (wanted.shape, dtype)
                    worst = (found.float() - wanted).abs().max().item()
                    assert worst < TOLERANCE[dtype], (lens, heads, kv_heads, dim, width, groups, list(given), worst)


@cache
def _answers(dtype: torch.dtype, device: str, cases: str) -> dict[Any, Tensor]:
    """What the reference gives, kept for all implementations: it is slow."""
    return {}


def _pools(pages: int, kv_heads: int, dim: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    return like.new_zeros(pages, 16, kv_heads, dim), like.new_zeros(pages, 16, kv_heads, width)
