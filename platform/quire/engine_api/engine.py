"""`LLMEngine`: requests with ids of the caller's, and one step of the engine at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from quire.engine_api.args import EngineArgs
from quire.errors import BadRequest, QuireError
from quire.llm import LLM
from quire.llm_requests import Adapters
from quire.pooling import PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams
from quire.text.inputs import PromptInput
from quire.text.outputs import CompletionOutput, RequestOutput
from quire.text.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt

Params = SamplingParams | BeamSearchParams | PoolingParams


class LLMEngine:
    """Steps a loaded model. One thread at a time; its requests and those of its `LLM` run in the same steps."""

    def __init__(self, llm: LLM) -> None:
        """An engine on a model that is loaded."""
        self.llm = llm

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model; raises as `LLM` does."""
        return cls(LLM(**engine_args.for_llm()))

    @property
    def model_config(self) -> ModelInfo:
        """What is known of the model: `max_model_len`, `vocab_size`, …"""
        return self.llm.info

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm.get_tokenizer()

    def add_request(
        self,
        request_id: str,
        prompt: PromptInput,
        params: Params,
        *,
        lora_request: Adapters = None,
        priority: int = 0,
    ) -> None:
        """Take in a request, to be answered by the steps to come. Arguments are those of `LLM.generate` for one prompt.

        Raises BadRequest, also when a request in flight has this id; then nothing was taken in.
        """
        self.add_prepared(request_id, self.prepare(prompt, params, lora_request), params, lora_request, priority)

    def prepare(self, prompt: PromptInput, params: Params, lora_request: Adapters = None) -> Prompt:
        """What takes its time of `add_request`: ids of the prompt, media, adapters. Any thread may call it."""
        requests = self.llm.requests
        requests.loaded_adapters(lora_request, 1)
        return requests.pooled([prompt])[0] if isinstance(params, PoolingParams) else requests.prompt(prompt)

    def add_prepared(
        self, request_id: str, prompt: Prompt, params: Params, lora_request: Adapters, priority: int
    ) -> None:
        """The rest of `add_request`."""
        requests = self.llm.requests
        if not isinstance(request_id, str) or request_id in requests.batch:
            raise BadRequest(f"`request_id` must be a text that no request in flight has, got {request_id!r:.80}.")
        requests.submit([prompt], params, lora_request, [priority], ids=[request_id])

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End these requests; no step tells of them any more. Unknown ids are left alone."""
        ids = [request_id] if isinstance(request_id, str) else request_id
        self.llm.requests.batch.abort(ids)

    def has_unfinished_requests(self) -> bool:
        """Whether steps will give more."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """How many requests are in flight."""
        return len(self.llm.requests.batch.ids)

    def step(self) -> list[Any]:
        """One step; of each request that it went on with, all there is so far.

        These are `RequestOutput`s, or `PoolingRequestOutput`s for pooling; later steps do not change them. A request
        that failed comes once, finished, with finish_reason "error" and the error's text as stop_reason.
        """
        return [
            _failure(request_id, made) if isinstance(made, QuireError) else made for request_id, made in self.advance()
        ]

    def advance(self) -> Sequence[tuple[str, Any]]:
        """`step`, by the requests' ids, with the `QuireError` of those that failed in place of an output."""
        return self.llm.requests.batch.advance()

    def get_metrics(self) -> dict[str, Any]:
        """Counters since start and gauges of now."""
        return self.llm.get_metrics()

    def close(self) -> None:
        """Free the device."""
        self.llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _failure(request_id: str, error: QuireError) -> RequestOutput:
    output = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error", stop_reason=error.message)
    return RequestOutput(request_id=request_id, prompt=None, prompt_token_ids=[], outputs=[output], finished=True)
