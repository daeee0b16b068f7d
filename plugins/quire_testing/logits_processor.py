"""Conformance of logits processors, which are called directly, without a sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.params.sampling import SamplingParams
from quire.records import Context, LogitsProcessor, LogitsProcessorImpl
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.require import require

OUTPUTS: Sequence[Sequence[int]] = ((), (3,), (3, 5, 3, 5, 3), tuple(range(12)), (7,) * 9)


@dataclass
class FakeProcessorRow:
    """One row of a batch (a `records.ProcessorRow`)."""

    state: Any
    output_ids: Sequence[int]


def check_logits_processor(
    record: LogitsProcessor,
    extra: Mapping[str, Any],
    *,
    outputs: Sequence[Sequence[int]] = OUTPUTS,
    options: Mapping[str, Any] | None = None,
    vocab_size: int = 64,
    tokenizer: Tokenizer | None = None,
) -> None:
    """A processor does nothing for requests without its fields, changes logits in place, and treats rows independently.

    extra: request fields that switch it on. outputs: token ids generated so far, one list per row tried. tokenizer: for
    processors that read `Context.tokenizer` (`byte_tokenizer` makes a small one); its size replaces vocab_size.
    """
    require(set(extra) <= set(record.fields), f"{record.name} declares {sorted(record.fields)}, not {sorted(extra)}.")
    vocab_size = len(tokenizer.token_strings) if tokenizer is not None else vocab_size
    context = Context(options=options or {}, vocab_size=vocab_size, tokenizer=tokenizer, device="cpu")
    processor = record.build(context)
    require(processor.start(SamplingParams()) is None, "start must give None for a request without its fields.")
    params = SamplingParams(extra=extra)
    logits = torch.randn(len(outputs), vocab_size, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.cat([_apply(processor, params, logits[i : i + 1], [ids]) for i, ids in enumerate(outputs)])
    together = _apply(processor, params, logits, outputs)
    require(torch.equal(together, one_by_one), "A row's logits depend on which rows it is applied with.")
    backwards = _apply(processor, params, logits.flip(0), outputs[::-1]).flip(0)
    require(torch.equal(together, backwards), "A row's logits depend on its position in the batch.")
    require(
        torch.equal(together, _apply(processor, params, logits, outputs)),
        "The same rows have other logits the second time.",
    )
    require(not together.isnan().any(), "The processor makes NaN of ordinary logits.")
    require((together > -torch.inf).any(-1).all(), "The processor leaves a row without any possible token.")
    _apply(processor, params, logits[:0], [])


def _apply(
    processor: LogitsProcessorImpl, params: SamplingParams, logits: Tensor, outputs: Sequence[Sequence[int]]
) -> Tensor:
    rows = [FakeProcessorRow(processor.start(params), tuple(ids)) for ids in outputs]
    require(all(row.state is not None for row in rows), "start must give a state for a request that has its fields.")
    changed = logits.clone()
    answer: object = processor.apply(changed, rows)  # type: ignore[func-returns-value]  # an author's may return something
    require(answer is None, "apply must change the logits in place and give nothing.")
    return changed
