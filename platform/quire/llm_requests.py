"""What `LLM` does before anything runs: prompts to ids, adapters loaded, requests handed to the batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from quire.adapter_sources import AdapterSources, check_name
from quire.errors import BadRequest
from quire.pooling import PoolingParams
from quire.records import Registry
from quire.sampling import BeamSearchParams, SamplingParams, check_logprobs
from quire.text.arguments import as_adapters, one_each
from quire.text.batch import Batch, Progress
from quire.text.inputs import InputLimits, PromptInput, to_prompt, with_bad_words
from quire.text.media import MediaInputs
from quire.text.pooled_inputs import pair_prompts, pooled_prompts
from quire.text.tokenizer import Tokenizer
from quire.types import AdapterRef, AdapterUse, LoRARequest, ModelInfo, Params, Prompt, Request

Adapters: TypeAlias = LoRARequest | Sequence[LoRARequest | Sequence[LoRARequest] | None] | None


class Requests:
    """Makes requests for one engine in this process."""

    def __init__(
        self, engine: Any, tokenizer: Tokenizer, registry: Registry, media: MediaInputs, sources: AdapterSources
    ) -> None:
        self._engine, self._tokenizer, self._registry = engine, tokenizer, registry
        self._media, self._sources = media, sources
        self._info: ModelInfo = engine.info
        self._numbers = itertools.count()
        self._adapter_paths: dict[str, str] = {}
        self._loading = Lock()
        self.batch = Batch(engine, tokenizer, self._info.eos_ids)

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the model takes beside text."""
        return self._info.modalities

    def prompt(self, value: PromptInput, special: bool = True) -> Prompt:
        """A prompt to be continued."""
        return to_prompt(value, self._tokenizer, self._limits(), add_special_tokens=special, media_inputs=self._media)

    def pooled(self, values: Sequence[PromptInput], truncate_prompt_tokens: int | None = None) -> list[Prompt]:
        """Prompts to be pooled, tokenized together where they are plain texts or ids."""
        if any(isinstance(value, Mapping) for value in values):
            return [self.prompt(value) for value in values]
        plain: list[Any] = list(values)
        return pooled_prompts(plain, self._tokenizer, self._limits(truncate_prompt_tokens))

    def pairs(self, texts: Sequence[tuple[str, str]], truncate_prompt_tokens: int | None = None) -> list[Prompt]:
        """Prompts of two texts each."""
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
        """Add a request for each prompt; their ids. What is wrong with one is raised before any is added.

        ids: of the requests, None = numbers. `max_tokens` beyond the context is cut to what fits.
        """
        count = len(prompts)
        name = "pooling_params" if isinstance(params, PoolingParams) else "sampling_params"
        kinds = (SamplingParams, BeamSearchParams, PoolingParams)
        per_prompt: Sequence[Params] = one_each(name, params, count, kinds)
        priorities: Sequence[int] = one_each("priority", 0 if priority is None else priority, count, (int,))
        for given in {id(given): given for given in per_prompt}.values():
            if isinstance(given, SamplingParams):
                check_logprobs("logprobs", given.logprobs, self._info.max_logprobs)
                check_logprobs("prompt_logprobs", given.prompt_logprobs, self._info.max_logprobs)
        wanted = self.loaded_adapters(lora_request, count)
        requests = [
            Request(
                id=self._free_number() if ids is None else ids[number],
                prompt=prompt,
                params=self._fitting(one, prompt),
                adapters=tuple(AdapterUse(AdapterRef(name=use.lora_name), use.weight) for use in uses),
                priority=urgency,
            )
            for number, (prompt, one, uses, urgency) in enumerate(
                zip(prompts, per_prompt, wanted, priorities, strict=True)
            )
        ]
        return self.batch.add(requests)

    def loaded_adapters(self, lora_request: Adapters, count: int) -> Sequence[Sequence[LoRARequest]]:
        """The adapters of each of `count` prompts, loaded. Any thread may call it."""
        wanted = as_adapters(lora_request, count)
        with self._loading:
            for one in dict.fromkeys(one for several in wanted for one in several):
                self._load_adapter(one)
        return wanted

    def _free_number(self) -> str:
        """The next number that no request has for an id."""
        return next(name for name in map(str, self._numbers) if name not in self.batch)

    def _fitting(self, params: Params, prompt: Prompt) -> Params:
        """The parameters with ids of bad words, and no more tokens asked for than fit behind the prompt."""
        if isinstance(params, PoolingParams):
            return params
        room = max(1, self._info.max_model_len - len(prompt.token_ids))
        if isinstance(params, BeamSearchParams):
            return params if params.max_tokens <= room else replace(params, max_tokens=room)
        if params.max_tokens is not None and params.max_tokens > room:
            params = replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
        return with_bad_words(params, self._tokenizer)

    def finish(self, ids: Sequence[str], use_tqdm: bool) -> list[Any]:
        """Step until these requests are done; their outputs in that order. use_tqdm: show progress."""
        progress = Progress(len(ids), use_tqdm, "Processed prompts")
        try:
            return self.batch.finish(ids, progress)
        finally:
            progress.close()

    def _load_adapter(self, wanted: LoRARequest) -> None:
        """Load the adapter if it is new or another path stands behind its name now."""
        if not self._registry.of("quire_adapter_runtimes"):
            raise BadRequest("`lora_request` needs an adapter runtime: LLM(…, enable_lora=True).", "lora_request")
        name, path = wanted.lora_name, wanted.lora_path
        if self._adapter_paths.get(name) == path:
            return
        check_name(name, with_owner=True)
        folder = Path(path).expanduser() if path else self._sources.find(name, self._info.root)
        if folder is None:
            raise BadRequest(f"No path was given for the adapter `{name}`, and no plugin knows one.", "lora_request")
        self._engine.load_adapter(name, folder)
        self._adapter_paths[name] = path
