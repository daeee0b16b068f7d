"""Engines on the CPU that launch a step before the one before is finished, as on a device that computes by itself."""

from __future__ import annotations

import pytest
from torch import Tensor

from quire.engine import build
from quire.engine.overlap.may_overlap import has_independent_steps
from quire.engine.overlap.overlapping_runner import OverlappingRunner
from quire.engine.overlap.sampled_tokens import SampleCopy


class PretendedDevice:
    """Engines that are built while it `is_used` overlap their steps, and have the samples of one when they wait for it.

    num_read: steps whose samples were read. most_unread: steps that were launched and not read, at once. error: raised
    by the next read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_used, self.num_read, self.most_unread = False, 0, 0
        self.error: Exception | None = None
        self._sent = dict[SampleCopy, Tensor]()
        read, reset = SampleCopy.read, OverlappingRunner.reset

        def send(copy: SampleCopy, tokens: Tensor) -> None:
            assert copy not in self._sent, "it is overwritten before it was read"
            self._sent[copy] = tokens.clone()
            self.most_unread = max(self.most_unread, len(self._sent))

        def read_late(copy: SampleCopy, count: int) -> list[int]:
            assert copy is next(iter(self._sent)), "steps are read in the order of their launch"
            error, self.error = self.error, None
            if error is not None:
                raise error
            self.num_read += 1
            copy._tokens[:count] = self._sent.pop(copy)
            found = read(copy, count)
            copy._tokens.fill_(-(1 << 40))
            return found

        def reset_all(runner: OverlappingRunner) -> None:
            self._sent.clear()
            reset(runner)

        monkeypatch.setattr(build, "may_overlap", lambda *model: self.is_used and has_independent_steps(*model))
        monkeypatch.setattr(SampleCopy, "send", send)
        monkeypatch.setattr(SampleCopy, "read", read_late)
        monkeypatch.setattr(OverlappingRunner, "reset", reset_all)
