"""Inputs of each operation for `check_op`: odd sizes, single tokens, empty rows, grouped heads, windows, strides.

One function per operation yields tuples of its arguments, which the first line of its docstring lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.ops import ACTS
from quire_models.step.forward_batch import ForwardBatch, ForwardBuffers, KVCache, KvShape
from quire_testing.ops.attention_cases import linear_heads, paged_attention, pools, read_kv, row_attention
from quire_testing.ops.low_rank_cases import low_rank
from quire_testing.ops.moe_cases import moe, route
from quire_testing.ops.quantized_cases import linear_quantized
from quire_testing.ops.state_cases import causal_conv, gated_delta, gated_rms_norm, selective_scan, ssd_scan

Case = tuple[Any, ...]


@dataclass
class RandomInputs:
    """Random tensors of one dtype, reproducible by the seed of the generator."""

    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator
    page_size: int = 16

    def __call__(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of normally distributed numbers, times `scale`."""
        made = torch.randn(shape, generator=self.generator) * scale
        return made.to(self.device, dtype or self.dtype)

    def ids(self, below: int, *shape: int) -> Tensor:
        """Integers in [0, below)."""
        return torch.randint(0, below, shape, generator=self.generator).to(self.device)


def rms_norm(draw: RandomInputs) -> Iterator[Case]:
    """Arguments: x, weight, eps."""
    for shape in ((1, 64), (5, 100), (3, 4, 24)):
        yield draw(*shape), draw(shape[-1]), 1e-6
    yield draw(5, 64), draw(64, dtype=torch.float32), 1e-5


def add_rms_norm(draw: RandomInputs) -> Iterator[Case]:
    """x, residual, weight, eps."""
    for tokens, width in ((1, 64), (7, 100)):
        yield draw(tokens, width), draw(tokens, width), draw(width), 1e-6


def layer_norm(draw: RandomInputs) -> Iterator[Case]:
    """x, weight, bias, eps."""
    yield draw(1, 64), draw(64), draw(64), 1e-5
    yield draw(7, 100), draw(100), None, 1e-5
    yield draw(7, 33), None, None, 1e-5


def _angles(draw: RandomInputs, tokens: int, half: int) -> tuple[Tensor, Tensor]:
    angle = draw(tokens, half, scale=3.0, dtype=torch.float32)
    return angle.cos(), angle.sin()


def rotary(draw: RandomInputs) -> Iterator[Case]:
    """q, k, cos, sin, interleaved."""
    for tokens, heads, kv_heads, dim, half in ((1, 4, 4, 16, 8), (7, 6, 2, 24, 12), (5, 4, 1, 16, 4)):
        for interleaved in (False, True):
            yield draw(tokens, heads, dim), draw(tokens, kv_heads, dim), *_angles(draw, tokens, half), interleaved


def write_kv(draw: RandomInputs) -> Iterator[Case]:
    """k, v, k_pool, v_pool, slot_mapping; v a strided slice of something wider, the last page free."""
    for tokens, kv_heads, dim in ((1, 1, 16), (9, 2, 24), (50, 2, 16)):
        free = max(3 * draw.page_size, tokens)
        slot_mapping = torch.randperm(free, generator=draw.generator)[:tokens].to(draw.device)
        wide, pages = draw(tokens, 2 * kv_heads, dim), free // draw.page_size + 2
        yield draw(tokens, kv_heads, dim), wide[:, kv_heads:], *pools(draw, pages, kv_heads, dim), slot_mapping


def rotary_write_kv(draw: RandomInputs) -> Iterator[Case]:
    """q, k, v, cos, sin, k_pool, v_pool, slot_mapping, interleaved."""
    for k, v, k_pool, v_pool, slot_mapping in write_kv(draw):
        tokens, kv_heads, dim = k.shape
        for interleaved in (False, True):
            q = draw(tokens, 3 * kv_heads, dim)
            yield q, k, v, *_angles(draw, tokens, dim // 2), k_pool.clone(), v_pool.clone(), slot_mapping, interleaved


def gated_act(draw: RandomInputs) -> Iterator[Case]:
    """The arguments are gate_up and act."""
    for name in ACTS:
        yield draw(1, 64), name
        yield draw(7, 2, 66), name


def act(draw: RandomInputs) -> Iterator[Case]:
    """The arguments are x and act."""
    for name in ACTS:
        yield draw(5, 33), name


def linear(draw: RandomInputs) -> Iterator[Case]:
    """weight, bias, x: bound to the first two, then called with the third."""
    for tokens, outputs, inputs in ((1, 48, 64), (7, 33, 65), (64, 96, 32)):
        yield draw(outputs, inputs, scale=inputs**-0.5), None, draw(tokens, inputs)
        yield draw(outputs, inputs, scale=inputs**-0.5), draw(outputs), draw(tokens, inputs)


def linear_batched(draw: RandomInputs) -> Iterator[Case]:
    """The cases of `linear`."""
    yield from linear(draw)


def linear_int8(draw: RandomInputs) -> Iterator[Case]:
    """The cases of `linear`, and matrices that are padded in both directions."""
    yield from linear(draw)
    yield draw(70, 100), draw(70), draw(3, 100)
    yield draw(2, 8), None, torch.zeros_like(draw(2, 8))


def embedding(draw: RandomInputs) -> Iterator[Case]:
    """Arguments: ids, table, scale."""
    for scale in (1.0, 8.0):
        yield draw.ids(50, 9), draw(50, 32), scale


def fused_blocks(draw: RandomInputs) -> Iterator[Case]:
    """blocks, width, x, fwd: bound to the first two, then called with the others. Not all blocks are of one kind."""
    width = 24
    weight = draw(width, scale=0.1)

    def shifted(x: Any, fwd: Any) -> Any:
        return x + weight

    runs: Sequence[Sequence[Callable[[Any, Any], Any]]] = (
        (),
        (_doubled,),
        (_doubled, shifted, _doubled, _grown, _grown),
        (shifted, _grown, shifted, shifted, _doubled),
    )
    for tokens in (1, 7):
        for blocks_of in runs:
            yield blocks_of, width, draw(tokens, width), _forward(draw, tokens)


def _doubled(x: Any, fwd: Any) -> Any:
    return x * 2.0


def _grown(x: Any, fwd: Any) -> Any:
    """Writes its result into x."""
    return x.add_(x * 0.5)


def _forward(draw: RandomInputs, tokens: int) -> ForwardBatch:
    """A step of one row, with a page pool for one block."""
    pages = -(-tokens // draw.page_size)
    return ForwardBuffers(tokens, 1, pages, draw.device).fill(
        token_ids=[0] * tokens,
        positions=np.arange(tokens),
        slot_mapping=np.arange(tokens),
        query_starts=np.array([0, tokens], dtype=np.int32),
        contexts=np.array([tokens], dtype=np.int32),
        page_table=np.arange(pages, dtype=np.int32)[None],
        logit_rows=np.arange(tokens),
        kv=KVCache.allocate([KvShape(1, 16)], pages, draw.page_size, draw.dtype, draw.device),
    )


def scale_logits(draw: RandomInputs) -> Iterator[Case]:
    """Arguments: x, scale, softcap."""
    for scale, softcap in ((1.0, None), (0.25, None), (1.0, 30.0), (0.5, 5.0)):
        yield draw(3, 101, scale=10.0), scale, softcap


def _logits(draw: RandomInputs) -> Iterator[Tensor]:
    """Logits with ties, as models in bfloat16 have them; rows without a possible token; a vocabulary of one token."""
    yield draw(1, 1, dtype=torch.float32)
    yield draw(5, 1000, scale=3.0, dtype=torch.float32)
    yield draw(2, 40_000, scale=5.0, dtype=torch.bfloat16).float()
    wide = draw(6, 300, scale=2.0, dtype=torch.float32)
    logits = wide[:, 17:116]
    logits[1, 5:] = -torch.inf
    yield logits


def _impossible(logits: Tensor) -> Tensor:
    logits = logits.clone()
    logits[0], logits[-1, -1] = -torch.inf, torch.nan
    return logits


def mask_logits(draw: RandomInputs) -> Iterator[Case]:
    """logits, masks, rows: all, some of them out of order, none; masks that allow all and nothing among them."""
    for logits in _logits(draw):
        count, words = len(logits), -(-logits.shape[1] // 32)
        masks = draw.ids(2**32, count, words).sub(2**31).int()
        masks[0], masks[-1, ::2] = -1, 0
        order = torch.randperm(count, generator=draw.generator).to(draw.device)
        for rows in (torch.arange(count, device=draw.device), order[: count - 1], order[:0]):
            yield logits, masks[: len(rows)], rows


def argmax(draw: RandomInputs) -> Iterator[Case]:
    """The only argument is logits."""
    for logits in _logits(draw):
        yield (logits,)
        yield (_impossible(logits),)


def sample(draw: RandomInputs) -> Iterator[Case]:
    """logits, temperature, uniform, top_k, top_p, min_p; rows with different filters beside greedy ones."""
    kinds = [(1.0, 0, 1.0, 0.0), (0.7, 40, 1.0, 0.0), (2.0, 0, 0.9, 0.0), (1.0, 5, 0.5, 0.1), (0.0, 0, 0.9, 0.5)]
    kinds += [(1e-9, 0, 1.0, 0.0), (1.0, 10**6, 1.0, 1.0), (1.0, 0, 0.0, 0.0), (0.8, 500, 0.99, 0.001)]
    for logits in _logits(draw):
        for first in range(0, len(kinds), 3):
            rows = [kinds[(first + r) % len(kinds)] for r in range(len(logits))]
            temperature, top_k, top_p, min_p = (np.array(each) for each in zip(*rows, strict=True))
            uniform = torch.rand(len(rows), generator=draw.generator, dtype=torch.float64).numpy()
            settings = temperature, uniform, top_k, top_p, min_p
            yield logits, *settings
            yield _impossible(logits), *settings


def logprobs(draw: RandomInputs) -> Iterator[Case]:
    """Arguments: logits, tokens, top."""
    for logits in _logits(draw):
        finite = logits.nan_to_num(neginf=-50.0)
        for top in (0, 1, 5, 200, logits.shape[1] + 1):
            yield finite, draw.ids(logits.shape[1], len(logits)), top


CASES: Mapping[str, Callable[[RandomInputs], Iterator[Case]]] = {
    function.__name__: function
    for function in (
        rms_norm,
        add_rms_norm,
        layer_norm,
        rotary,
        write_kv,
        rotary_write_kv,
        paged_attention,
        read_kv,
        row_attention,
        gated_act,
        act,
        linear,
        linear_batched,
        linear_heads,
        linear_int8,
        linear_quantized,
        low_rank,
        embedding,
        route,
        moe,
        scale_logits,
        mask_logits,
        argmax,
        sample,
        logprobs,
        causal_conv,
        gated_delta,
        ssd_scan,
        selective_scan,
        gated_rms_norm,
        fused_blocks,
    )
}
"""By operation, the function that yields its cases."""

BOUND: Mapping[str, int] = {
    "linear": 2,
    "linear_batched": 2,
    "linear_heads": 1,
    "linear_int8": 2,
    "linear_quantized": 5,
    "moe": 5,
    "fused_blocks": 2,
}
"""By operation, the number of arguments to bind; the result is called with the others."""

WRITTEN = ("write_kv", "rotary_write_kv")
"""Operations that write their result into page pools among their arguments."""
