"""Conformance of logits processors. It knows no sampler: rows are given by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.records import Context, LogitsProcessor, ProcessesLogits
from quire.sampling import SamplingParams
from quire.testing.demand import demand

OUTPUTS: Sequence[Sequence[int]] = ((), (3,), (3, 5, 3, 5, 3), tuple(range(12)), (7,) * 9)


@dataclass
class Row:
    """One row of a batch (a `records.ProcessorRow`)."""

    state: Any
    output_ids: Sequence[int]


def check_processor(
    record: LogitsProcessor,
    extra: Mapping[str, Any],
    *,
    outputs: Sequence[Sequence[int]] = OUTPUTS,
    options: Mapping[str, Any] | None = None,
    vocab_size: int = 64,
) -> None:
    """A processor costs nothing when unused, changes its rows in place, and sees each row alone.

    extra: request fields that switch it on. outputs: token ids generated so far, one list per row tried.
    """
    demand(set(extra) <= set(record.fields), f"{record.name} declares {sorted(record.fields)}, not {sorted(extra)}.")
    processor = record.build(Context(options=options or {}, vocab_size=vocab_size, device="cpu"))
    demand(processor.start(SamplingParams()) is None, "start must give None for a request without its fields.")
    params = SamplingParams(extra=extra)
    logits = torch.randn(len(outputs), vocab_size, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.cat([_apply(processor, params, logits[i : i + 1], [ids]) for i, ids in enumerate(outputs)])
    together = _apply(processor, params, logits, outputs)
    demand(torch.equal(together, one_by_one), "A row's logits depend on which rows it is applied with.")
    backwards = _apply(processor, params, logits.flip(0), outputs[::-1]).flip(0)
    demand(torch.equal(together, backwards), "A row's logits depend on its place among the rows.")
    demand(torch.equal(together, _apply(processor, params, logits, outputs)), "The same rows give other logits again.")
    demand(not together.isnan().any(), "The processor makes NaN of ordinary logits.")
    demand((together > -torch.inf).any(-1).all(), "The processor leaves a row without any possible token.")
    _apply(processor, params, logits[:0], [])


def _apply(
    processor: ProcessesLogits, params: SamplingParams, logits: Tensor, outputs: Sequence[Sequence[int]]
) -> Tensor:
    rows = [Row(processor.start(params), tuple(ids)) for ids in outputs]
    demand(all(row.state is not None for row in rows), "start must give a state for a request that has its fields.")
    changed = logits.clone()
    answer: object = processor.apply(changed, rows)  # type: ignore[func-returns-value]  # a stranger's may
    demand(answer is None, "apply must change the logits in place and give nothing.")
    return changed
