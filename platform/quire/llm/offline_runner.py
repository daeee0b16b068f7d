"""Runs requests on an engine in this process and collects their outputs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tqdm import tqdm

from quire.errors import QuireError
from quire.params.pooling import PoolingParams
from quire.text.inputs.inputs import to_engine_request
from quire.text.outputs.outputs import Collector, RequestOutput
from quire.text.outputs.pooling_outputs import PooledCollector
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Request, SeqDelta


class OfflineEngine(Protocol):
    """The part of the engine's interface that the runner uses."""

    def add(self, request: Request) -> object:
        """Add a request. Raises a `QuireError` if it is refused."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> object:
        """End a request or one of its sequences; unknown ids are ignored."""
        ...

    def step(self) -> list[SeqDelta]:
        """Compute one step, and return the new output of each sequence that it computed."""
        ...


class ProgressBar:
    """A progress bar of finished requests that also shows prefill and decode speed."""

    def __init__(self, total: int, shown: bool, label: str) -> None:
        self._bar = tqdm(total=total, desc=label, disable=not shown, dynamic_ncols=True)
        self._begin = time.perf_counter()
        self._read = 0
        self._written = 0

    def add_tokens(self, read: int, written: int) -> None:
        """Count the prompt tokens read and the output tokens written by a step."""
        self._read += read
        self._written += written
        if not self._bar.disable:
            seconds = max(time.perf_counter() - self._begin, 1e-9)
            self._bar.set_postfix_str(
                f"prefill: {self._read / seconds:.1f} tok/s, decode: {self._written / seconds:.1f} tok/s", refresh=False
            )

    def add_finished(self) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


class OfflineRunner:
    """The requests in flight on one engine and their outputs. Used by one thread at a time."""

    def __init__(self, engine: OfflineEngine, tokenizer: Tokenizer, eos_ids: Collection[int] = ()) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._collectors: dict[str, Collector | PooledCollector] = {}
        self._order: list[str] = []

    @property
    def ids(self) -> list[str]:
        """Ids of requests whose final outputs were not returned yet, in the order of their addition."""
        return list(self._order)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._collectors

    def add(self, requests: Sequence[Request]) -> list[str]:
        """Add all requests and return their ids. If one is refused, none is added and its error is raised."""
        added: list[str] = []
        try:
            for request in requests:
                self._collectors[request.id] = self._collector(request)
                added.append(request.id)
                self._engine.add(to_engine_request(request))
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
        """End these requests and drop their outputs."""
        aborted = set(ids)
        for request_id in aborted:
            if self._collectors.pop(request_id, None) is not None:
                self._engine.abort(request_id)
        self._order = [request_id for request_id in self._order if request_id not in aborted]

    def finish(self, ids: Sequence[str], progress: ProgressBar) -> list[Any]:
        """Step until these requests are done, and return their outputs in the order of `ids`.

        An error or Ctrl-C aborts all of them and is raised again; other requests stay in flight.
        """
        waiting = {request_id for request_id in ids if not self._collectors[request_id].done}
        for _ in range(len(ids) - len(waiting)):
            progress.add_finished()
        try:
            while waiting:
                for request_id in self._step(progress) & waiting:
                    waiting.discard(request_id)
                    progress.add_finished()
        except BaseException:
            self.abort(ids)
            raise
        outputs = [self._collectors.pop(request_id).result() for request_id in ids]
        returned = set(ids)
        self._order = [request_id for request_id in self._order if request_id not in returned]
        return outputs

    def complete(self) -> None:
        """Step until all requests are done; `finish` then returns their outputs."""
        progress = ProgressBar(0, False, "")
        while not all(collector.done for collector in self._collectors.values()):
            self._step(progress)

    def use_engine(self, engine: OfflineEngine) -> None:
        """Go on with another engine, which has none of the requests that are not done."""
        self._engine = engine

    def advance(self) -> list[tuple[str, Any]]:
        """Compute one step; returns (id, output so far or error) of each request that the step advanced.

        Outputs are copies, which later steps do not change. Requests that are done or failed are removed.
        """
        advanced: dict[str, QuireError | None] = {}
        for delta in self._engine.step():
            collector = self._collectors.get(delta.request_id)
            if collector is None:
                continue
            advanced[delta.request_id] = None
            try:
                self._push(collector, delta)
            except QuireError as error:
                advanced[delta.request_id] = error
                self.abort([delta.request_id])
        # requests that steps of `finish` completed
        advanced |= {name: None for name, collector in self._collectors.items() if collector.done}
        return [(name, self._current_output(name) if error is None else error) for name, error in advanced.items()]

    def _current_output(self, request_id: str) -> Any:
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

    def _push(self, collector: Collector | PooledCollector, delta: SeqDelta) -> None:
        """Pass the delta to its collector. Raises the error that the delta carries, if any."""
        collector.push(delta)
        for request_id, index in collector.take_aborts() if collector.aborts else ():
            self._engine.abort(request_id, index)

    def _step(self, progress: ProgressBar) -> set[str]:
        """Run one step of the engine, and return the ids of the requests that it finished."""
        done: set[str] = set()
        read = written = 0
        for delta in self._engine.step():
            collector = self._collectors.get(delta.request_id)
            if collector is None:
                continue  # the request was aborted
            if delta.num_cached_tokens is not None:
                read += len(collector.request.prompt.token_ids)
            written += len(delta.token_ids)
            self._push(collector, delta)
            if collector.done:
                done.add(delta.request_id)
        progress.add_tokens(read, written)
        return done
