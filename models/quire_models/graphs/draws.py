"""Sampling behind captured steps, captured too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire_kernels.sampling import DeviceSample, Floats
from quire_models.graphs.recorder import Launch, Recorder
from quire_models.step.upload import UploadMemory

FIELDS = 5
"""Settings of a row."""


class CapturedDraws:
    """Samples after the logits of captured steps: a graph of its own for each bucket, so that greedy steps need none.

    Settings are copied to the device while it computes the step. max_rows: of a step.
    """

    def __init__(self, sample: DeviceSample, recorder: Recorder, max_rows: int, device: torch.device) -> None:
        self._sample, self._recorder = sample, recorder
        self._memory = UploadMemory(8 * FIELDS * max_rows, device)
        self._launches = dict[int, Launch]()

    def capture(self, bucket: int, logits: Tensor, sampled: Tensor) -> None:
        """Capture the samples after logits [bucket, vocab], which become sampled [bucket]."""
        settings = self._memory.device[: 8 * FIELDS * bucket].view(torch.float64).view(FIELDS, bucket)

        def run() -> None:
            sampled.copy_(self._sample(logits, settings))

        self._launches[bucket] = self._recorder.record(run)

    def run(self, bucket: int, settings: Floats) -> None:
        """Sample as settings, [5, rows], say; rows that fill the step up are greedy."""
        self._memory.wait()
        size, rows = 8 * FIELDS * bucket, settings.shape[1]
        fields = self._memory.host[:size].view(np.float64).reshape(FIELDS, bucket)
        fields[:, :rows], fields[0, rows:] = settings, 0
        self._memory.send(size)
        self._launches[bucket]()
