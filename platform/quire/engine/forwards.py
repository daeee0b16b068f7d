"""Forwards: the hidden states of a step, from one call of the model or, where rows may not meet, from several.

It knows layouts and pages, but not what becomes of hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.engine.adapters import Adapters
from quire.engine.load import Loaded
from quire.engine.rows import Ids, Layout
from quire.engine.sizes import Sizes
from quire.engine.sources import Sources
from quire.engine.towers import StepMedia
from quire.types import Plan
from quire_models import Forward, ForwardBuffers, KvPool, MediaRows


class Forwards:
    """Calls of one model, whose keys and values lie in `kv`.

    alone: compute every token in a forward of its own (but tokens that see each other in one); see `Runner`. blame:
    the error of a request whose forward raised.
    """

    def __init__(
        self,
        loaded: Loaded,
        sizes: Sizes,
        kv: KvPool,
        adapters: Adapters,
        alone: bool,
        blame: Callable[[Exception], str] = str,
    ) -> None:
        decoder = loaded.decoder
        self._model, self._kv, self._adapters, self._alone = loaded.module, kv, adapters, alone
        self._blame = blame
        self._whole, self._size = decoder.whole_prompts, sizes.page_size
        self._buffers = ForwardBuffers(
            sizes.max_tokens, sizes.max_rows, sizes.max_pages, loaded.device, decoder.position_axes
        )
        self._sources: Sources | None = None
        if decoder.source is not None:
            self._sources = Sources(
                decoder.source,
                loaded.module,
                kv,
                adapters,
                max_tokens=sizes.max_tokens,
                max_model_len=sizes.max_model_len,
                alone=alone,
            )

    def hidden(
        self, plan: Plan, layout: Layout, index: Ids, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """Hidden states of the tokens in `index`: [len(index), width]. All tokens are computed; who fails is noted.

        Of a model that reads sources, these are stored first.
        """
        if self._sources is None:
            return self._of(plan, layout, index, media, failures)
        self._sources.store(plan, layout, media, failures)
        text = self._sources.text(plan, layout, index)
        return torch.empty(0) if text is None else self._of(*text, None, failures)

    def _of(self, plan: Plan, layout: Layout, index: Ids, media: StepMedia | None, failures: dict[int, str]) -> Tensor:
        if not self._alone:
            adapters, failed = self._adapters.bind(plan)
            failures |= failed
            forward = self._fill(layout, index, media.all() if media else None, adapters)
            hidden: Tensor = self._model(forward)
            return hidden
        if self._whole:
            return self._of_rows(plan, layout, index, media, failures)
        every: list[Tensor] = []
        for begin, end in layout.pieces():
            adapters, failed = self._adapters.bind(_plan_of_piece(plan, layout, begin, end))
            failures |= failed
            rows, all_of_them = media.some(begin, end) if media else None, np.arange(end - begin)
            hidden = self._model(self._fill(layout.piece(begin, end, self._size), all_of_them, rows, adapters))
            every += hidden.clone().split(1)  # it is valid until the next call only
        return torch.cat([every[token] for token in index]) if len(index) else every[0][:0]

    def _of_rows(
        self, plan: Plan, layout: Layout, index: Ids, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """The same for a model whose prompts are computed whole: each in a forward of its own."""
        found = []
        for row, chunk in enumerate(plan.chunks):
            adapters, failed = self._adapters.bind(replace(plan, chunks=(chunk,)))
            failures |= failed
            begin, end = layout.starts[row], layout.starts[row + 1]
            mine = index[(index >= begin) & (index < end)] - begin
            rows = media.some(int(begin), int(end)) if media else None
            found.append(self._model(self._fill(layout.row(row), mine, rows, adapters)).clone())
        return torch.cat(found)

    def one_by_one(
        self,
        plan: Plan,
        layout: Layout,
        index: Ids,
        media: StepMedia | None,
        failures: dict[int, str],
        error: Exception,
    ) -> Tensor:
        """What `hidden` gives, after that raised `error`: each row in a forward of its own, in the order of the plan.

        Rows that raise alone, and those that read pages which these should have filled, are noted as failures; their
        hidden states are 0. Raises `error` again where nothing else can be computed.
        """
        if self._sources is not None or len(plan.chunks) == 1:
            raise error
        hidden: Tensor | None = None
        unfilled: set[int] = set()
        for row, chunk in enumerate(plan.chunks):
            begin, end = int(layout.starts[row]), int(layout.starts[row + 1])
            pages = layout.pages[row, : -(-int(layout.contexts[row]) // self._size)]
            mine = (index >= begin) & (index < end)
            try:
                if not unfilled.isdisjoint(pages.tolist()):
                    raise error
                adapters, failed = self._adapters.bind(replace(plan, chunks=(chunk,)))
                failures |= failed
                rows = media.some(begin, end) if media else None
                found = self._model(self._fill(layout.row(row), index[mine] - begin, rows, adapters))
            except Exception as raised:
                failures[chunk.seq_id] = self._blame(raised)
                unfilled.update(pages[chunk.start // self._size :].tolist())
                continue
            if hidden is None:
                hidden = found.new_zeros(len(index), found.shape[-1])
            hidden[torch.from_numpy(mine).to(hidden.device)] = found
        if hidden is None:
            raise error
        return hidden

    def _fill(self, layout: Layout, logit_rows: Ids, media: MediaRows | None, adapters: Any) -> Forward:
        return self._buffers.fill(
            layout.tokens,
            layout.positions,
            layout.slots,
            layout.starts,
            layout.contexts,
            layout.pages,
            logit_rows,
            self._kv,
            media_rows=media,
            adapters=adapters,
            prompt_lens=layout.prompt_lens,
            token_types=layout.token_types,
            rope_positions=layout.rope_positions,
            ends=layout.ends,
            sources=None if self._sources is None else self._sources.rows(layout),
        )


def _plan_of_piece(plan: Plan, layout: Layout, begin: int, end: int) -> Plan:
    """A step of nothing but these tokens of one of the plan's chunks."""
    row = int(np.searchsorted(layout.starts, begin, side="right")) - 1
    chunk, place = plan.chunks[row], begin - int(layout.starts[row])
    token_ids = tuple(chunk.token_ids[place : place + end - begin])
    return Plan(chunks=(replace(chunk, start=chunk.start + place, token_ids=token_ids, new_pages=()),))
