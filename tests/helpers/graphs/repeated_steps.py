"""Decode graphs on a CPU: what would be captured is called again, with the ops of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels import reference, reference_low_rank
from quire_kernels.candidates.capture import capturable
from quire_kernels.low_rank import Segments, TokenSlots
from quire_kernels.ops import AttentionMetadata
from quire_kernels.select import Ops, reference as reference_ops


@dataclass
class RepeatedSteps:
    """A recorder whose launches call the function again. launches: how many there were."""

    launches: int = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()

        def launch() -> None:
            self.launches += 1
            run()

        return launch


@capturable
def _attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: AttentionMetadata, *args: Any, **options: Any
) -> Tensor:
    kept = rows.contexts > 0
    if kept.all():
        return reference.paged_attention(q, k_pool, v_pool, rows, *args, **options)
    assert len(q) == len(kept), "only steps with one token a row are filled up"
    some = AttentionMetadata(
        query_starts=torch.arange(int(kept.sum()) + 1, dtype=torch.int32),
        contexts=rows.contexts[kept],
        pages=rows.pages[kept],
        lens_host=rows.lens_host,
        contexts_host=rows.contexts_host,
        max_query=1,
        max_context=rows.max_context,
    )
    found = reference.paged_attention(q[kept], k_pool, v_pool, some, *args, **options)
    out = q.new_zeros(len(q), *found.shape[1:])
    out[kept] = found
    return out


@capturable
def _write_kv(k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    kept = slot_mapping >= 0
    reference.write_kv(k[kept], None if v is None else v[kept], k_pool, v_pool, slot_mapping[kept])


@capturable
def _rotary_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slot_mapping: Tensor,
    interleaved: bool = False,
) -> Tensor:
    q, k = reference.rotary(q, k, cos, sin, interleaved)
    _write_kv(k, v, k_pool, v_pool, slot_mapping)
    return q


class _AdapterSlots(reference_low_rank.ReferenceAdapterSlots):
    """Finds the adapter of each token of a captured step in the tensors of `TokenSlots`."""

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        if isinstance(segments, TokenSlots):
            pairs = zip(segments.token_slots.tolist(), segments.token_weights.tolist(), strict=True)
            uses = [((slot, weight),) if slot >= 0 else () for slot, weight in pairs]
            segments = Segments.from_uses(uses, [1] * len(uses))
        return super().__call__(y, x, segments)


@capturable
def _low_rank(
    inputs: int, slices: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> _AdapterSlots:
    return _AdapterSlots(inputs, slices, slots, dtype, torch.device(device))


def _stateful(name: str) -> Callable[..., Tensor]:
    """An op with states, which stores none for rows whose slot is below 0."""
    op = getattr(reference, name)
    parameters = signature(op)

    def run(*args: Any, **options: Any) -> Tensor:
        given = parameters.bind(*args, **options)
        state, slots = given.arguments["state"], given.arguments["slots"]
        with_scratch = torch.cat((state, torch.zeros_like(state[:1])))
        given.arguments |= {"state": with_scratch, "slots": torch.where(slots < 0, len(state), slots)}
        found: Tensor = op(*given.args, **given.kwargs)
        state.copy_(with_scratch[:-1])
        return found

    return capturable(run)


def _sample(logits: Tensor, *settings: Any) -> Tensor:
    return reference.sample(logits, *settings)


def _sample_on_device(logits: Tensor, settings: Tensor) -> Tensor:
    temperature, uniform, top_k, top_p, min_p = settings.cpu().numpy()
    return reference.sample(logits, temperature, uniform, top_k.astype(np.int64), top_p, min_p)


_sample.on_device = _sample_on_device  # type: ignore[attr-defined]

OPS = {
    "sample": _sample,
    **{name: _stateful(name) for name in ("causal_conv", "gated_delta", "ssd_scan", "selective_scan")},
    "paged_attention": _attention,
    "write_kv": _write_kv,
    "rotary_write_kv": _rotary_write_kv,
    "low_rank": _low_rank,
}
"""In the place of kernels of a GPU, by op."""


def device_ops() -> Ops:
    """Reference ops of which a step can be captured."""
    return replace(reference_ops(), **OPS)
