"""The ops that choose tokens from logits and report log-probabilities.

A row's result depends on that row only.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor

Floats = np.ndarray[Any, np.dtype[np.float64]]
"""Float64 array in CPU memory."""

Integers = np.ndarray[Any, np.dtype[np.int64]]
"""Int64 array in CPU memory."""

MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Argmax(Protocol):
    """Id of the largest logit of each row, the lowest id on a tie; -1 if no logit is finite or one is NaN or +inf.

    logits float32 [rows, vocab] -> int64 [rows]
    """

    def __call__(self, logits: Tensor) -> Tensor: ...


class SampleOp(Protocol):
    """Sample a token per row by inverse CDF in id order; for temperature 0 or an invalid distribution, as `Argmax`.

    w = floor(2⁵⁰ softmax(logits / temperature)). A weight below any of these thresholds becomes 0:
    min_p · the largest w; the top_k-th largest w (0: off); the w at which the weights that top_k leaves, in descending
    order, reach top_p of their sum.
    token = the first i with Σ_{j ≤ i} w[j] > floor(uniform Σ w). Every implementation gives the same token in any
    batch; implementations may differ where `uniform` is within 1e-6 of an edge.
    logits float32 [rows, vocab]; the others [rows], in CPU memory; uniform in [0, 1) -> int64 [rows]
    """

    def __call__(
        self, logits: Tensor, temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats
    ) -> Tensor: ...


class DeviceSample(Protocol):
    """The op `sample` with settings on the device, in captured steps: attribute `on_device` of what implements it so.

    logits float32 [rows, vocab]; settings float64 [5, rows], as of `device_settings` -> int64 [rows]
    """

    def __call__(self, logits: Tensor, settings: Tensor) -> Tensor: ...


def device_settings(temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats) -> Floats:
    """The settings of rows for `DeviceSample`, float64 [5, rows]: temperatures above 0 are at least the smallest normal
    number of float32.
    """
    divisor = np.where(temperature == 0, 0.0, np.maximum(temperature, MIN_TEMPERATURE))
    return np.stack((divisor, uniform, top_k, top_p, min_p))


class MaskLogits(Protocol):
    """Set logits that a row's bit mask forbids to -inf: where bit j % 32 of entry j // 32 is 0.

    y[rows[i], j] = logits[rows[i], j] if masks[i, j // 32] >> (j % 32) & 1 else -inf;  y = logits in all other rows
    logits float32 [R, vocab]; masks int32 [n, ceil(vocab / 32)]; rows int64 [n], all different -> y. May overwrite
    logits.
    """

    def __call__(self, logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor: ...


class LogprobsOp(Protocol):
    """Log-probabilities log_softmax(logits) for reporting; all NaN in a row with NaN or +inf.

    Returns for each row: log-probability of its token; rank of that token, 1 + the number of larger logits; ids of the
    `top` largest logits (at most the whole vocabulary), in descending order, ties by ascending id; their
    log-probabilities. logits float32 [rows, vocab]; tokens int64 [rows] -> float32 [rows], int64 [rows], int64 and
    float32 [rows, top]
    """

    def __call__(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
