"""Engines on the CPU that launch a step before the one before is finished, as on a device that computes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_rig import Answer, Rig
from hypothesis import strategies as st
from scheduler_invariants import check_scheduler
from torch import Tensor

from quire.engine import build
from quire.engine.overlap.may_overlap import has_independent_steps
from quire.engine.overlap.overlapping_runner import OverlappingRunner
from quire.engine.overlap.sampled_tokens import SampleCopy
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, WeightedAdapter

PLAIN = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.8, 1.3]),
        "seed": st.integers(0, 99),
        "max_tokens": st.integers(1, 22),
    },
    optional={
        "top_p": st.floats(0.5, 1.0),
        "top_k": st.integers(1, 60),
        "min_p": st.floats(0.0, 0.2),
        "stop_token_ids": st.lists(st.integers(0, 255), max_size=40),
        "ignore_eos": st.booleans(),
    },
)
OTHER = st.sampled_from([{}, {}, {}, {"logprobs": 1}, {"repetition_penalty": 1.3}, {"min_tokens": 1}])


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


def asked(prompts: Sequence[Sequence[int]], adapters: Sequence[str | None]) -> st.SearchStrategy[Any]:
    """Draws a request: prompt, parameters, others of them, adapter, steps before it comes, before it is aborted."""
    begin, length = st.integers(0, 12), st.sampled_from([None, None, None, 1, 4, 9])
    return st.tuples(st.sampled_from(prompts), PLAIN, OTHER, st.sampled_from(adapters), begin, length)


def answers_of(rig: Rig, requests: list[Any], aborts: bool) -> list[Answer]:
    """The answer of each request, which comes and is aborted after some steps."""
    ids, answers, step = dict[int, str](), dict[str, Answer](), 0
    while len(ids) < len(requests) or rig.engine.has_work:
        for i, (prompt, params, other, adapter, begin, length) in enumerate(requests):
            if begin == step:
                adapters = () if adapter is None else (WeightedAdapter(AdapterRef(name=adapter)),)
                ids[i] = rig.add(prompt, SamplingParams(**{**params, **other}), adapters=adapters)
                answers[ids[i]] = Answer()
            if aborts and length is not None and begin + length == step:
                rig.engine.abort(ids[i])
        for delta in rig.engine.step():
            answers[delta.request_id].token_ids += delta.token_ids
            answers[delta.request_id].deltas.append(delta)
        check_scheduler(rig.engine._scheduler)
        step += 1
    assert rig.engine.stats().num_pages_used == 0
    assert not rig.engine._in_flight
    return [answers[ids[i]] for i in range(len(requests))]


def check_answers(requests: list[Any], answers: list[Answer], wanted: list[Answer]) -> None:
    """Those that were not aborted are as wanted; the others begin so."""
    for (*_, length), found, whole in zip(requests, answers, wanted, strict=True):
        if length is None:
            assert found.token_ids == whole.token_ids
            assert found.last.finish_reason == whole.last.finish_reason
            assert found.last.stop_reason == whole.last.stop_reason
        else:
            assert found.token_ids == whole.token_ids[: len(found.token_ids)]
