"""`LLMEngine`: runs requests with ids that the caller chooses, one engine step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from quire.engine_api.args import EngineArgs
from quire.errors import BadRequest, QuireError
from quire.llm.llm import LLM
from quire.llm.requests import Adapters
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.text.inputs.inputs import PromptInput
from quire.text.outputs.outputs import CompletionOutput, RequestOutput
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt

Params = SamplingParams | BeamSearchParams | PoolingParams


class LLMEngine:
    """Steps a loaded model, in one thread at a time. Its requests and those of its `LLM` share the steps."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model. Raises the errors of `LLM`."""
        return cls(LLM(**engine_args.to_llm_arguments()))

    @property
    def model_config(self) -> ModelInfo:
        """Facts of the loaded model: `max_model_len`, `vocab_size`, …"""
        return self.llm.info

    def get_tokenizer(self) -> Tokenizer:
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
        """Add a request, which later steps compute. The arguments are those of `LLM.generate` for one prompt.

        Raises BadRequest, also for the id of a request in flight; then nothing was added.
        """
        self.add_prepared(request_id, self.prepare(prompt, params, lora_request), params, lora_request, priority)

    def prepare(self, prompt: PromptInput, params: Params, lora_request: Adapters = None) -> Prompt:
        """The slow part of `add_request`: tokenize, load media, load adapters. Thread-safe."""
        requests = self.llm.requests
        requests.load_adapters(lora_request, 1)
        return requests.pooling_prompts([prompt])[0] if isinstance(params, PoolingParams) else requests.prompt(prompt)

    def add_prepared(
        self, request_id: str, prompt: Prompt, params: Params, lora_request: Adapters, priority: int
    ) -> None:
        """The fast part of `add_request`: submit a prompt that `prepare` returned."""
        requests = self.llm.requests
        if not isinstance(request_id, str) or request_id in requests.runner:
            raise BadRequest(f"`request_id` must be a text that no request in flight has, got {request_id!r:.80}.")
        requests.submit([prompt], params, lora_request, [priority], ids=[request_id])

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End these requests; later steps return no outputs of them. Unknown ids are ignored."""
        ids = [request_id] if isinstance(request_id, str) else request_id
        self.llm.requests.runner.abort(ids)

    def has_unfinished_requests(self) -> bool:
        """Whether further steps are needed."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """The number of requests in flight."""
        return len(self.llm.requests.runner.ids)

    def step(self) -> list[Any]:
        """Compute one step, and return the output so far of each request that it advanced.

        The outputs are `RequestOutput`s, or `PoolingRequestOutput`s for pooling; later steps do not change them. A
        request that failed is returned once, finished, with finish_reason "error" and the error message as stop_reason.
        """
        return [
            _failure(request_id, output) if isinstance(output, QuireError) else output
            for request_id, output in self.advance()
        ]

    def advance(self) -> Sequence[tuple[str, Any]]:
        """Compute one step, and return (id, output so far or `QuireError`) of each request that it advanced."""
        return self.llm.requests.runner.advance()

    def get_metrics(self) -> dict[str, Any]:
        """Counters since the start and current gauges."""
        return self.llm.get_metrics()

    def close(self) -> None:
        self.llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _failure(request_id: str, error: QuireError) -> RequestOutput:
    output = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error", stop_reason=error.message)
    return RequestOutput(request_id=request_id, prompt=None, prompt_token_ids=[], outputs=[output], finished=True)
