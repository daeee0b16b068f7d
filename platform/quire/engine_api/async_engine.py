"""`AsyncLLMEngine`: an asyncio interface to an engine in this process, which runs its steps in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from quire.engine_api.args import EngineArgs
from quire.engine_api.engine import LLMEngine
from quire.errors import BadRequest, EngineDied, QuireError
from quire.llm.requests import Adapters
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.text.inputs.inputs import PromptInput
from quire.text.outputs.outputs import RequestOutput
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo

_T = TypeVar("_T")


class _Latest:
    """The latest output of a request. A reader that is slower than the steps skips outputs."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._output: Any = None

    def put(self, output: Any) -> None:
        """Store an output, or an error for `next` to raise."""
        self._output = output
        self._ready.set()

    async def next(self) -> Any:
        """Wait for an output that was not returned before."""
        await self._ready.wait()
        self._ready.clear()
        if isinstance(self._output, QuireError):
            raise self._output
        return self._output


class AsyncLLMEngine:
    """Runs the requests of any number of tasks of one event loop in the same steps.

    engine: stepped by this object only.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(1, "quire-engine")
        self._latest: dict[str, _Latest] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._more = False
        self._closed = False

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model. Blocks, and raises the errors of `LLM`."""
        return cls(LLMEngine.from_engine_args(engine_args))

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | BeamSearchParams,
        request_id: str,
        lora_request: Adapters = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the output so far of one prompt after each step; the last one is `finished`.

        Leaving the loop or cancelling the task aborts the request. Raises the errors of `LLM.generate`.
        """
        async for output in self._outputs(prompt, sampling_params, request_id, lora_request, priority):
            yield output

    async def encode(
        self,
        prompt: PromptInput,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: Adapters = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[Any]:
        """Yield the `PoolingRequestOutput` of one prompt. Cancelling the task aborts the request."""
        async for output in self._outputs(prompt, pooling_params, request_id, lora_request, priority):
            yield output

    async def _outputs(
        self, prompt: PromptInput, params: Any, request_id: str, lora_request: Adapters, priority: int
    ) -> AsyncIterator[Any]:
        if request_id in self._latest:
            raise BadRequest(f"`request_id` {request_id!r:.80} is that of a request in flight.", "request_id")
        latest = self._latest[request_id] = _Latest()
        try:
            await self.check_health()
            prepared = await asyncio.to_thread(self.engine.prepare, prompt, params, lora_request)
            await self._run(lambda: self.engine.add_prepared(request_id, prepared, params, lora_request, priority))
            self._wake()
            finished = False
            while not finished:
                output = await latest.next()
                finished = output.finished
                yield output
        finally:
            del self._latest[request_id]
            if not self._closed:  # not awaited because the task may be cancelled; no effect on a finished request
                self._thread.submit(self.engine.abort_request, request_id)

    async def abort(self, request_id: str) -> None:
        """End a request. The iterator over its outputs raises a `QuireError`."""
        await self._run(lambda: self.engine.abort_request(request_id))
        if request_id in self._latest:
            self._latest[request_id].put(QuireError(f"The request {request_id!r:.80} was aborted."))

    async def get_tokenizer(self) -> Tokenizer:
        return self.engine.get_tokenizer()

    async def get_model_config(self) -> ModelInfo:
        """Facts of the loaded model: `max_model_len`, `vocab_size`, …"""
        return self.engine.model_config

    async def check_health(self) -> None:
        """Raise EngineDied after the engine was shut down."""
        if self._closed:
            raise EngineDied("The engine was shut down.")

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the engine's thread, between two steps."""
        await self.check_health()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _wake(self) -> None:
        self._more = True
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())

    async def _step(self) -> None:
        """Step while there are requests. The engine raises after several failed steps; then every request fails."""
        try:
            while self._more:
                self._more = False
                while await self._run(self.engine.has_unfinished_requests):
                    for request_id, output in await self._run(self.engine.advance):
                        if request_id in self._latest:
                            self._latest[request_id].put(output)
        except Exception as error:
            failure = error if isinstance(error, QuireError) else QuireError(f"The engine failed: {error}")
            for latest in self._latest.values():
                latest.put(failure)

    def shutdown(self) -> None:
        """Free the device. Requests in flight end with an error."""
        if self._closed:
            return
        self._closed = True
        for latest in self._latest.values():
            latest.put(EngineDied("The engine was shut down."))
        self._thread.submit(self.engine.close).result()
        self._thread.shutdown()

    shutdown_background_loop = shutdown

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        self.shutdown()
