"""Runs a batch of requests on an engine in this process, from requests to outputs.

It knows an engine only as something to add to and step, and nothing of how prompts came about.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tqdm import tqdm

from quire.errors import QuireError
from quire.pooling import PoolingParams
from quire.text.inputs import for_engine
from quire.text.outputs import Collector, RequestOutput
from quire.text.pooling_outputs import PooledCollector
from quire.text.tokenizer import Tokenizer
from quire.types import Delta, Request


class Steps(Protocol):
    """The part of an engine that a batch drives."""

    def add(self, request: Request) -> object:
        """Take in a request, or raise a `QuireError`."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> object:
        """End a request or one of its seqs; nothing if it is not there."""
        ...

    def step(self) -> list[Delta]:
        """Compute one step."""
        ...


class Progress:
    """A bar that counts finished requests and shows how fast prompts are read and answers written."""

    def __init__(self, total: int, shown: bool, label: str) -> None:
        self._bar = tqdm(total=total, desc=label, disable=not shown, dynamic_ncols=True)
        self._begin = time.perf_counter()
        self._read = 0
        self._written = 0

    def tokens(self, read: int, written: int) -> None:
        """Prompt tokens read and answer tokens written by a step."""
        self._read += read
        self._written += written
        if not self._bar.disable:
            seconds = max(time.perf_counter() - self._begin, 1e-9)
            self._bar.set_postfix_str(
                f"prefill: {self._read / seconds:.1f} tok/s, decode: {self._written / seconds:.1f} tok/s", refresh=False
            )

    def finished(self) -> None:
        """One request is done."""
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class Batch:
    """Requests in flight on one engine, and the text that came of them. One thread at a time."""

    def __init__(self, engine: Steps, tokenizer: Tokenizer, eos_ids: Collection[int] = ()) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._collectors: dict[str, Collector | PooledCollector] = {}
        self._order: list[str] = []

    @property
    def ids(self) -> list[str]:
        """Requests that were added and not yet handed out, in order."""
        return list(self._order)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._collectors

    def add(self, requests: Sequence[Request]) -> list[str]:
        """Add all of them or, when one is refused, none; the refusal is raised. Their ids."""
        added: list[str] = []
        try:
            for request in requests:
                self._collectors[request.id] = self._collector(request)
                added.append(request.id)
                self._engine.add(for_engine(request))
        except BaseException:
            self.abort(added)
            raise
        self._order.extend(added)
        return added

    def _collector(self, request: Request) -> Collector | PooledCollector:
        if isinstance(request.params, PoolingParams):
            return PooledCollector(request)
        return Collector(request, self._tokenizer, self._eos_ids)

    def abort(self, ids: Iterable[str]) -> None:
        """End these requests and forget them."""
        gone = set(ids)
        for request_id in gone:
            if self._collectors.pop(request_id, None) is not None:
                self._engine.abort(request_id)
        self._order = [request_id for request_id in self._order if request_id not in gone]

    def finish(self, ids: Sequence[str], progress: Progress) -> list[Any]:
        """Step until these are done; their outputs (as their collectors give them) in the order of `ids`.

        An error, or Ctrl-C, ends them all and is raised; other requests stay in flight.
        """
        waiting = {request_id for request_id in ids if not self._collectors[request_id].done}
        for _ in range(len(ids) - len(waiting)):
            progress.finished()
        try:
            while waiting:
                for request_id in self._step(progress) & waiting:
                    waiting.discard(request_id)
                    progress.finished()
        except BaseException:
            self.abort(ids)
            raise
        outputs = [self._collectors.pop(request_id).result() for request_id in ids]
        gone = set(ids)
        self._order = [request_id for request_id in self._order if request_id not in gone]
        return outputs

    def advance(self) -> list[tuple[str, Any]]:
        """One step; by id, of each request it went on with, a copy of all there is so far, or the error that ended it.

        Those that are done or failed are forgotten.
        """
        made: dict[str, QuireError | None] = {}
        for delta in self._engine.step():
            collector = self._collectors.get(delta.request_id)
            if collector is None:
                continue
            made[delta.request_id] = None
            try:
                self._take_in(collector, delta)
            except QuireError as error:
                made[delta.request_id] = error
                self.abort([delta.request_id])
        made |= {name: None for name, collector in self._collectors.items() if collector.done}  # by steps of `finish`
        return [(name, self._so_far(name) if error is None else error) for name, error in made.items()]

    def _so_far(self, request_id: str) -> Any:
        collector = self._collectors[request_id]
        result = collector.result()
        if collector.done:
            del self._collectors[request_id]
            self._order.remove(request_id)
        elif isinstance(result, RequestOutput):
            result.outputs = [
                replace(one, token_ids=list(one.token_ids), logprobs=one.logprobs and list(one.logprobs))
                for one in result.outputs
            ]
        return result

    def _take_in(self, collector: Collector | PooledCollector, delta: Delta) -> None:
        """Raises the error that the delta carries, if any."""
        collector.push(delta)
        for request_id, index in collector.take_aborts() if collector.aborts else ():
            self._engine.abort(request_id, index)

    def _step(self, progress: Progress) -> set[str]:
        """One step of the engine; the requests it finished."""
        done: set[str] = set()
        read = written = 0
        for delta in self._engine.step():
            collector = self._collectors.get(delta.request_id)
            if collector is None:
                continue  # of a request that was aborted meanwhile
            if delta.num_cached_tokens is not None:
                read += len(collector.request.prompt.token_ids)
            written += len(delta.token_ids)
            self._take_in(collector, delta)
            if collector.done:
                done.add(delta.request_id)
        progress.tokens(read, written)
        return done
