"""Builds the requests of `LLM`: encodes prompts, loads adapters, and submits the requests to the runner."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from quire.errors import BadRequest, ModelAsleep
from quire.hooks.adapter_resolver import check_name
from quire.llm.arguments import as_adapters, broadcast
from quire.llm.offline_runner import OfflineRunner, ProgressBar
from quire.llm.parts import LLMParts
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams, check_logprobs
from quire.text.inputs.inputs import InputLimits, PromptInput, to_prompt, with_bad_words, with_prediction
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.inputs.pooling_inputs import pair_prompts, pooled_prompts
from quire.types import AdapterRef, LoRARequest, ModelInfo, Params, Prompt, Request, WeightedAdapter

Adapters: TypeAlias = LoRARequest | Sequence[LoRARequest | Sequence[LoRARequest] | None] | None


class OfflineRequests:
    """Builds and submits requests for one engine in this process."""

    def __init__(self, model: LLMParts, media: MultimodalProcessor) -> None:
        self._engine, self._tokenizer, self._registry = model.engine, model.tokenizer, model.registry
        self._media, self._adapter_resolver = media, model.adapter_resolver()
        self._info: ModelInfo = model.engine.info
        self._numbers = itertools.count()
        self._adapter_paths: dict[str, str] = {}
        self._load_lock = Lock()
        self.runner = OfflineRunner(model.engine, model.tokenizer, self._info.eos_ids)
        self.is_asleep = False

    def use_engine(self, engine: Any) -> None:
        """Go on with another engine of the same model, which has none of the adapters."""
        self._engine = engine
        self._adapter_paths.clear()
        self.runner.use_engine(engine)

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that the model accepts besides text."""
        return self._info.modalities

    def prompt(self, value: PromptInput, special: bool = True) -> Prompt:
        """Build a prompt for generation. special: add the special tokens of the tokenizer."""
        return to_prompt(value, self._tokenizer, self._limits(), add_special_tokens=special, multimodal=self._media)

    def pooling_prompts(self, values: Sequence[PromptInput], truncate_prompt_tokens: int | None = None) -> list[Prompt]:
        """Build prompts for pooling. Plain texts and ids are tokenized together; maps one by one."""
        if any(isinstance(value, Mapping) for value in values):
            return [self.prompt(value) for value in values]
        plain: list[Any] = list(values)
        return pooled_prompts(plain, self._tokenizer, self._limits(truncate_prompt_tokens))

    def pairs(self, texts: Sequence[tuple[str, str]], truncate_prompt_tokens: int | None = None) -> list[Prompt]:
        """Build one prompt from each pair of texts."""
        limits = self._limits(truncate_prompt_tokens)
        return pair_prompts(texts, self._tokenizer, limits, token_types=self._info.token_types)

    def _limits(self, truncate_prompt_tokens: int | None = None) -> InputLimits:
        return InputLimits(
            max_model_len=self._info.max_model_len,
            vocab_size=self._info.vocab_size,
            truncate_prompt_tokens=truncate_prompt_tokens,
            truncation_side="left" if truncate_prompt_tokens is None else "right",
            param="prompts",
        )

    def submit(
        self,
        prompts: Sequence[Prompt],
        params: Params | Sequence[Params],
        lora_request: Adapters,
        priority: Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Add a request for each prompt and return their ids. All are validated before the first one is added.

        ids: ids of the requests, None = numbers. `max_tokens` is limited to what fits into the context.
        """
        if self.is_asleep:
            raise ModelAsleep("The model sleeps; `wake_up` restores it.")
        count = len(prompts)
        name = "pooling_params" if isinstance(params, PoolingParams) else "sampling_params"
        kinds = (SamplingParams, BeamSearchParams, PoolingParams)
        per_prompt: Sequence[Params] = broadcast(name, params, count, kinds)
        priorities: Sequence[int] = broadcast("priority", 0 if priority is None else priority, count, (int,))
        for distinct in {id(one): one for one in per_prompt}.values():
            if isinstance(distinct, SamplingParams):
                check_logprobs("logprobs", distinct.logprobs, self._info.max_logprobs)
                check_logprobs("prompt_logprobs", distinct.prompt_logprobs, self._info.max_logprobs)
        adapters = self.load_adapters(lora_request, count)
        requests = [
            Request(
                id=self._next_id() if ids is None else ids[number],
                prompt=prompt,
                params=self._fit_to_context(one, prompt),
                adapters=tuple(WeightedAdapter(AdapterRef(name=use.lora_name), use.weight) for use in uses),
                priority=urgency,
            )
            for number, (prompt, one, uses, urgency) in enumerate(
                zip(prompts, per_prompt, adapters, priorities, strict=True)
            )
        ]
        return self.runner.add(requests)

    def load_adapters(self, lora_request: Adapters, count: int) -> Sequence[Sequence[LoRARequest]]:
        """Load the adapters of `count` prompts, and return those of each. Thread-safe."""
        adapters = as_adapters(lora_request, count)
        with self._load_lock:
            for one in dict.fromkeys(itertools.chain.from_iterable(adapters)):
                self._load_adapter(one)
        return adapters

    def _next_id(self) -> str:
        """The next number that is not the id of a request."""
        return next(name for name in map(str, self._numbers) if name not in self.runner)

    def _fit_to_context(self, params: Params, prompt: Prompt) -> Params:
        """The parameters with the ids of bad words and of the prediction; `max_tokens` is limited to what fits."""
        if isinstance(params, PoolingParams):
            return params
        budget = max(1, self._info.max_model_len - len(prompt.token_ids))
        if isinstance(params, BeamSearchParams):
            return params if params.max_tokens <= budget else replace(params, max_tokens=budget)
        if params.max_tokens is not None and params.max_tokens > budget:
            params = replace(params, max_tokens=budget, min_tokens=min(params.min_tokens, budget))
        return with_prediction(with_bad_words(params, self._tokenizer), self._tokenizer, self._limits())

    def finish(self, ids: Sequence[str], use_tqdm: bool) -> list[Any]:
        """Step until these requests are done, and return their outputs in this order. use_tqdm: show progress."""
        progress = ProgressBar(len(ids), use_tqdm, "Processed prompts")
        try:
            return self.runner.finish(ids, progress)
        finally:
            progress.close()

    def _load_adapter(self, adapter: LoRARequest) -> None:
        """Load the adapter if it is new or its name now refers to another path."""
        if not self._registry.by_hook("quire_adapter_runtimes"):
            raise BadRequest("`lora_request` needs an adapter runtime: LLM(…, enable_lora=True).", "lora_request")
        name, path = adapter.lora_name, adapter.lora_path
        if self._adapter_paths.get(name) == path:
            return
        check_name(name, with_owner=True)
        folder = Path(path).expanduser() if path else self._adapter_resolver.find(name, self._info.root)
        if folder is None:
            raise BadRequest(f"No path was given for the adapter `{name}`, and no plugin finds one.", "lora_request")
        self._engine.load_adapter(name, folder)
        self._adapter_paths[name] = path
