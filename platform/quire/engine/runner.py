"""Runner: the only place that touches the device. Plan in, StepResult out.

It owns the model, the KV pools and the rows; it decides nothing about who runs. The order of effect
within a step is that of `quire.types.Plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quire.engine.adapters import Adapters
from quire.engine.constraints import Masks
from quire.engine.forwards import Forwards
from quire.engine.grammars import Grammars
from quire.engine.load import Loaded
from quire.engine.logits import edits_of
from quire.engine.logprobs import describe
from quire.engine.poolers import Poolers
from quire.engine.processors import Processors
from quire.engine.rows import Ids, Layout, Rows
from quire.engine.sampler import Chooser, Sampler
from quire.engine.sizes import Sizes
from quire.engine.towers import StepMedia, Towers
from quire.engine.wanted import Wanted
from quire.errors import QuireError
from quire.pooling import Pooled, PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import Plan, Sample, SeqStart, StepResult, TokenLogprobs
from quire_models import KvPool

log = logging.getLogger(__name__)

SLAB = 64
"""Prompt positions scored at a time: their logits over the whole vocabulary are the largest tensors there are."""


class Runner:
    """Computes plans with one model on one device.

    batch_invariant: compute every token in a forward of its own, so that the shapes of all operations,
    and with them every bit of its result, depend on nothing but its own seq; slower in proportion. Tokens that see
    each other are computed in one. blame: the error of a request whose forward raised.
    """

    def __init__(
        self,
        loaded: Loaded,
        sizes: Sizes,
        processors: Processors,
        grammars: Grammars,
        adapters: Adapters,
        towers: Towers,
        poolers: Poolers,
        batch_invariant: bool = False,
        blame: Callable[[Exception], str] = str,
    ) -> None:
        generates = loaded.decoder.generates
        self._head: Callable[..., Tensor] = loaded.module.logits if generates else _no_logits
        self._argmax: Callable[..., list[int]] | None = loaded.module.argmax if generates else None
        self._eos_ids = loaded.eos_ids
        self._processors = processors
        self._grammars = grammars
        self._constraints = grammars.constraints
        self._adapters = adapters
        self._towers = towers
        self._poolers = poolers
        self._ops = loaded.ops
        self._sampler = Sampler(processors, self._constraints, loaded.ops)
        self._alone = batch_invariant
        shapes, dtype, device = loaded.decoder.kv_shapes, loaded.kv_dtype, loaded.device
        self._kv = KvPool.allocate(shapes, sizes.num_pages, sizes.page_size, dtype, device)
        self._host = KvPool.allocate(
            shapes, sizes.num_host_pages, sizes.page_size, dtype, "cpu", pin_memory=device.type == "cuda"
        )
        self._rows = Rows(
            sizes.max_rows + 8,
            sizes.max_pages,
            sizes.page_size,
            loaded.decoder.position_axes,
            loaded.decoder.whole_media,
        )
        self._forwards = Forwards(loaded, sizes, self._kv, adapters, batch_invariant, blame)

    def populate(self, going_on: Callable[[], bool]) -> None:
        """Take the memory of the pages from the system, beside the steps; see `KvPool.populate`."""
        self._kv.populate(going_on)

    def reset(self) -> None:
        """Forget every seq; pages keep what they hold."""
        self._rows.clear()
        self._adapters.clear()
        self._towers.clear()
        self._poolers.clear()

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """Compute a plan. What fails for one seq is in its sample; anything else is raised."""
        for seq_id in plan.ended:
            self._rows.end(seq_id)
            self._towers.end(seq_id)
            self._poolers.end(seq_id)
        KvPool.swap(self._kv, self._host, plan.swaps_out)
        KvPool.swap(self._host, self._kv, plan.swaps_in)
        self._kv.copy(plan.copies)
        for start in plan.started:
            self._start(start)
            self._towers.start(start)
            self._poolers.start(start)
        self._adapters.follow(plan)
        if not plan.chunks:
            return StepResult({})
        layout = self._rows.lay_out(plan.chunks)
        wanted = Wanted.of(plan.chunks, layout, self._rows, self._poolers)
        choosers = [chooser for seq_id in wanted.sampled if (chooser := self._rows[seq_id].chooser) is not None]
        masks = self._masks(plan, choosers) if self._rows.num_constrained else None
        media, failures = self._towers.rows(plan.chunks, layout.starts)
        hidden = self._hidden(plan, layout, wanted.index, media, failures)
        samples = self._samples(hidden, wanted, choosers, masks, failures)
        scores = self._scores(hidden, wanted, failures)
        return StepResult(samples, scores, failures, self._pool(plan, hidden, wanted, failures))

    def _hidden(
        self, plan: Plan, layout: Layout, index: Ids, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """Hidden states of the tokens in `index`. If something in the model raises, only the rows that it raises for
        fail; raises where that is all of them."""
        try:
            return self._forwards.hidden(plan, layout, index, media, failures)
        except Exception as error:
            log.exception("A step of %d tokens failed; its rows are computed one by one", plan.num_tokens)
            return self._forwards.one_by_one(plan, layout, index, media, failures, error)

    def _masks(self, plan: Plan, choosers: Sequence[Chooser]) -> Masks | None:
        """Begin to fill the masks of those who are to choose; beams are first told of the tokens chosen for them."""
        for chunk in plan.chunks:
            row = self._rows[chunk.seq_id]
            if chunk.samples and row.chooser is not None and row.chooser.beam:
                known = len(row.prompt_ids) + len(row.chooser.output_ids)
                self._sampler.tell(row.chooser, chunk.token_ids[known - chunk.start :])
        return self._sampler.masks(choosers)

    def _start(self, start: SeqStart) -> None:
        params, output_ids = start.params, list(start.output_ids)
        chooser, scored = None, None
        if isinstance(params, SamplingParams):
            chooser, scored = self._chooser(start, params, output_ids), params.prompt_logprobs
        elif not isinstance(params, PoolingParams):
            chooser = self._searcher(start, params, output_ids)
        self._rows.start(start.seq_id, chooser, start.prompt_ids, scored, start.token_types, start.media)

    def _chooser(self, start: SeqStart, params: SamplingParams, output_ids: list[int]) -> Chooser:
        edits = edits_of(params, self._eos_ids, start.prompt_ids, output_ids)
        try:
            uses = self._processors.start(params, output_ids, start.prompt_ids)
            constraint = self._grammars.start(params.structured, output_ids) if params.structured else None
        except QuireError as error:
            return Chooser(params, start.seed, output_ids, edits, error=error.told)
        return Chooser(params, start.seed, output_ids, edits, uses, constraint)

    def _searcher(self, start: SeqStart, params: BeamSearchParams, output_ids: list[int]) -> Chooser:
        try:
            constraint = self._grammars.start(params.structured, output_ids) if params.structured else None
        except QuireError as error:
            return Chooser(params, start.seed, output_ids, error=error.told)
        return Chooser(params, start.seed, output_ids, constraint=constraint)

    def _logits(self, hidden: Tensor, seq_ids: Sequence[int], failures: dict[int, str]) -> Tensor:
        """hidden [rows, width], row i of seq_ids[i] -> float32 [rows, vocab]; who fails is noted."""
        parts = [
            self._head(rows) if adapters is None else self._head(rows, adapters)
            for rows, adapters in self._bound(hidden, seq_ids, failures)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _bound(
        self, hidden: Tensor, seq_ids: Sequence[int], failures: dict[int, str]
    ) -> Iterator[tuple[Tensor, Any | None]]:
        """Rows that go through the head together, and the adapters bound for them."""
        together = [slice(i, i + 1) for i in range(len(hidden))] if self._alone else [slice(None)]
        for some in together:
            adapters, failed = self._adapters.bind_rows(seq_ids[some])
            failures |= failed
            yield (hidden[some] if self._alone else hidden), adapters

    def _samples(
        self,
        hidden: Tensor,
        wanted: Wanted,
        choosers: Sequence[Chooser],
        masks: Masks | None,
        failures: dict[int, str],
    ) -> Mapping[int, Sample]:
        if not choosers:
            return {}
        if len(hidden) > len(choosers):
            hidden = hidden[: len(choosers)]
        if self._argmax is not None and all(chooser.plain for chooser in choosers):
            parts = [self._argmax(*bound) for bound in self._bound(hidden, wanted.sampled, failures)]
            samples = self._sampler.take(list(chain.from_iterable(parts)), choosers)
        else:
            samples = self._sampler.sample(self._logits(hidden, wanted.sampled, failures), choosers, masks)
        return dict(zip(wanted.sampled, samples, strict=True))

    def _scores(
        self, hidden: Tensor, wanted: Wanted, failures: dict[int, str]
    ) -> Mapping[int, Sequence[TokenLogprobs]]:
        scores: dict[int, Sequence[TokenLogprobs]] = {}
        at = len(wanted.sampled)
        for seq_id, token_ids, num_top in wanted.scored:
            entries: list[TokenLogprobs] = []
            for i in range(0, len(token_ids), SLAB):
                some = token_ids[i : i + SLAB]
                logits = self._logits(hidden[at + i : at + i + len(some)], [seq_id] * len(some), failures)
                entries += describe(self._ops.logprobs, logits, some, [num_top] * len(some))
            at += len(token_ids)
            scores[seq_id] = entries
        return scores

    def _pool(self, plan: Plan, hidden: Tensor, wanted: Wanted, failures: dict[int, str]) -> Mapping[int, Pooled]:
        if not self._poolers.anyone:
            return {}

        def bound(seq_ids: Sequence[int]) -> Any:
            adapters, failed = self._adapters.bind_rows(seq_ids)
            failures.update(failed)
            return adapters

        count = sum(count for _, count in wanted.pooled)
        return self._poolers.pool(hidden[len(hidden) - count :], wanted.pooled, plan.chunks, bound)


def _no_logits(hidden: Tensor, adapters: Any = None) -> Tensor:
    raise AssertionError("who asks for logits was refused when it came")
