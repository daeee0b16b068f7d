"""Captures the decode steps of one model, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire_kernels.low_rank import Segments, TokenSlots
from quire_kernels.ops import AttentionMetadata
from quire_kernels.sampling import device_settings
from quire_models.graphs.buckets import bucket_of, buckets
from quire_models.graphs.draws import CapturedDraws
from quire_models.graphs.inputs import DecodeInputs, GraphInputs, TokenAdapters
from quire_models.graphs.recorder import Launch, Recorder
from quire_models.step.forward_batch import ForwardBatch
from quire_models.step.kv_cache import KVCache
from quire_models.step.state_cache import StateCache


@dataclass(frozen=True)
class CapturedAdapters:
    """How captured steps know the adapters of their tokens.

    max_rank: of an adapter. wrap: makes `ForwardBatch.adapters` of `TokenSlots`, as of the `Segments` of other steps.
    """

    max_rank: int
    wrap: Callable[[Any], Any]

    def on_device(self, slots: Tensor, weights: Tensor) -> Any:
        """`ForwardBatch.adapters` for the slot of each token, int32, and its weight, float32."""
        return self.wrap(TokenSlots.on_device(slots, weights, self.max_rank))

    def of_tokens(self, adapters: Any) -> TokenAdapters | None:
        """The adapters of a step; None if it must not be captured."""
        bound = list(adapters.values()) if isinstance(adapters, Mapping) else [adapters]
        return bound[0].slot_of_tokens() if len(bound) == 1 and isinstance(bound[0], Segments) else None


class DecodeGraphs:
    """Steps of `model` in which every row has one token and its logits are wanted, up to `max_rows` rows.

    A captured step computes hidden states, logits, and the most likely tokens. `logits` and `argmax` stand in the place
    of the model's: for hidden states that `run` returned last, they return what that step has computed.
    kv, state: where keys and values are, and the states of blocks that keep one. max_len, max_pages: of the longest
    sequence. width: of the hidden states that the head takes. max_sampled: size of `sampled`, if others put more
    tokens there. adapters: of steps that use some, which are captured besides; None captures no such steps.
    sampled: int64 [rows], on the device, where a step leaves its most likely tokens, -1 where there is none. A token
    -1 - i of a step is the i-th of them.
    """

    def __init__(
        self,
        model: Any,
        kv: KVCache,
        recorder: Recorder,
        *,
        max_rows: int,
        max_len: int,
        max_pages: int,
        width: int,
        position_axes: int = 1,
        max_sampled: int = 0,
        adapters: CapturedAdapters | None = None,
        state: StateCache | None = None,
    ) -> None:
        self._model, self._kv, self._max_len, self._axes = model, kv, max_len, position_axes
        self._state = state
        self._width, self._recorder = width, recorder
        self._sizes = buckets(max_rows)
        most, device = self._sizes[-1], model.device
        self._inputs = GraphInputs(most, max_pages, device, position_axes, max(most, max_sampled))
        self.sampled = self._inputs.sampled
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._index = torch.arange(most, device=device)
        self._order, self._ones = np.arange(most), np.ones(most, np.int32)
        self._hidden = self._logits = torch.empty(0)
        self._adapters, self._launches = adapters, dict[tuple[int, bool], Launch]()
        self._last: tuple[Tensor, int] | None = None
        on_device = getattr(model.ops.sample, "on_device", None)
        self._draws = None if on_device is None else CapturedDraws(on_device, recorder, most, device)

    @torch.inference_mode()
    def capture(self, sizes: tuple[int, ...] | None = None) -> None:
        """Capture steps of these buckets, by default all. The largest comes first: the others use its memory.

        Raises RuntimeError for a model that waits for the device.
        """
        kinds = (False,) if self._adapters is None else (False, True)
        for size in reversed(self._sizes) if sizes is None else sizes:
            for adapted in kinds:
                self._launches[size, adapted] = self._recorder.record(self._step(size, adapted))
            if self._draws is not None and len(self._logits):
                self._draws.capture(size, self._logits[:size], self.sampled[:size])

    def run(self, inputs: DecodeInputs, index: NDArray[np.int64], adapters: Any = None) -> Tensor | None:
        """Hidden states of the tokens in `index`, valid until the next call: [rows, width of the model].

        None if this step is not captured. It has no media.
        """
        rows = len(inputs.tokens)
        single = rows == len(inputs.contexts) == len(index) and np.array_equal(index, self._order[:rows])
        others = inputs.token_types, inputs.ends, inputs.sources
        bucket = bucket_of(rows, self._sizes) if single and all(each is None for each in others) else None
        if bucket is None:
            return None
        used = None if adapters is None or self._adapters is None else self._adapters.of_tokens(adapters)
        if adapters is not None and used is None:
            return None
        self._inputs.fill(bucket, inputs, used)
        self._launches[bucket, used is not None]()
        hidden = self._hidden[:rows]
        self._last = hidden, rows
        return hidden

    def logits(self, hidden: Tensor, adapters: Any = None) -> Tensor:
        """Logits of hidden states, as the model computes them; the result may be overwritten."""
        rows = self._rows_of(hidden, adapters)
        found: Tensor = self._model.logits(hidden, adapters) if rows is None else self._logits[:rows]
        return found

    def argmax(self, hidden: Tensor, adapters: Any = None) -> list[int]:
        """The most likely tokens after hidden states, as the model finds them."""
        tokens = self.computed_argmax(hidden, adapters)
        found: list[int] = self._model.argmax(hidden, adapters) if tokens is None else tokens.tolist()
        return found

    def computed_argmax(self, hidden: Tensor, adapters: Any = None) -> Tensor | None:
        """The most likely tokens after hidden states, on the device, if the last step has computed them."""
        rows = self._rows_of(hidden, adapters)
        return None if rows is None else self.sampled[:rows]

    def drawn(self, hidden: Tensor, arguments: Sequence[Any], adapters: Any = None) -> Tensor | None:
        """Tokens drawn after hidden states, on the device, if that is captured. arguments: of the op `sample`."""
        rows = self._rows_of(hidden, adapters)
        bucket = None if rows is None or self._draws is None else bucket_of(rows, self._sizes)
        if bucket is None or self._draws is None:
            return None
        self._draws.run(bucket, device_settings(*arguments))
        return self.sampled[:rows]

    def _rows_of(self, hidden: Tensor, adapters: Any) -> int | None:
        """The number of rows if these are the last step's hidden states and it has computed their logits."""
        if self._last is None or self._last[0] is not hidden or adapters is not None or not len(self._logits):
            return None
        return self._last[1]

    def _step(self, size: int, adapted: bool) -> Callable[[], None]:
        def run() -> None:
            hidden = self._model(self._forward_batch(size, adapted))
            logits = tokens = None
            if hidden.shape[-1] == self._width and self._model.part.has_lm_head:
                logits = self._model.logits(hidden)
                tokens = self._model.ops.argmax(logits)
            if not len(self._hidden):  # the first is the largest
                self._keep(hidden, logits)
            self._hidden[:size].copy_(hidden)
            if logits is not None and tokens is not None:
                self._logits[:size].copy_(logits)
                self.sampled[:size].copy_(tokens)

        return run

    def _keep(self, hidden: Tensor, logits: Tensor | None) -> None:
        """Allocate the results, which all captured steps share."""
        self._hidden = torch.empty_like(hidden)
        if logits is not None:
            self._logits = torch.empty_like(logits)

    def _forward_batch(self, size: int, adapted: bool) -> ForwardBatch:
        fields = self._inputs.on_device(size)
        used = self._adapters if adapted else None
        rows = AttentionMetadata(
            query_starts=self._starts[: size + 1],
            contexts=fields.contexts,
            pages=self._inputs.page_table(size),
            lens_host=self._ones[:size],
            contexts_host=self._ones[:size] * self._max_len,
            max_query=1,
            max_context=self._max_len,
        )
        return ForwardBatch(
            tokens=self._inputs.tokens(size),
            positions=fields.positions,
            slot_mapping=fields.slots,
            lengths=fields.lengths,
            rows=rows,
            logit_rows=self._index[:size],
            kv=self._kv,
            rope_positions=fields.rope if self._axes > 1 else None,
            adapters=None if used is None else used.on_device(fields.adapter_slots, fields.adapter_weights),
            state=self._state,
            state_slots=None if self._state is None else fields.state_slots,
        )
