"""`LLM`: a model in this process, for scripts and notebooks, without a server.

Methods and arguments are those of vLLM's class of that name. It knows no architecture: plugins do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from quire.errors import BadRequest
from quire.llm_chat import ChatPrompts
from quire.llm_open import Opened, opened
from quire.llm_pooling import PooledCalls
from quire.llm_requests import Adapters, Requests
from quire.llm_speech import SpokenCalls
from quire.media.intake import Intake
from quire.pooling import PoolingParams
from quire.records import Registry, SpeechTask
from quire.sampling import BeamSearchParams, SamplingParams
from quire.text.arguments import as_prompts
from quire.text.beams import BeamSearchOutput, beam_output
from quire.text.inputs import PromptInput
from quire.text.media import MediaInputs
from quire.text.outputs import RequestOutput
from quire.text.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from quire.text.renderer import Renderer
from quire.text.speech import Speech
from quire.text.tokenizer import Tokenizer
from quire.text.transcript import Transcription
from quire.types import ModelInfo

if TYPE_CHECKING:
    from quire.engine_api.engine import LLMEngine

Prompts: TypeAlias = PromptInput | Sequence[PromptInput]
Params: TypeAlias = SamplingParams | BeamSearchParams
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Pooling: TypeAlias = PoolingParams | Sequence[PoolingParams] | None


class LLM:
    """A loaded model.

    model: a folder, a hub id, or the name of a demo model that a plugin brings. plugins: names of
    entry points, None = the bundled ones. settings: any field of `quire.config.ModelConfig`: dtype, seed,
    max_model_len, task, kv_cache_memory_bytes, chat_template, max_num_seqs, tokenizer, revision, …

    Raises TypeError for an unknown argument, and a `StartupError` when the model cannot be loaded.
    Use it as a context manager, or `close` it, to free the device. One thread at a time.
    """

    def __init__(
        self,
        model: str,
        *,
        plugins: Sequence[str] | str | None = None,
        enable_lora: bool = False,
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        self._run_on(opened(model, plugins, enable_lora, plugin_options, settings))

    @classmethod
    def from_engine(
        cls, engine: Any, tokenizer: Tokenizer, registry: Registry, chat_template: str | None = None
    ) -> LLM:
        """An `LLM` on an engine that is already there; it is closed with the `LLM`."""
        made = cls.__new__(cls)
        made._run_on(Opened(engine=engine, tokenizer=tokenizer, registry=registry, chat_template=chat_template))
        return made

    def _run_on(self, model: Opened) -> None:
        self._engine = model.engine
        self.info: ModelInfo = model.engine.info
        self._tokenizer = tokenizer = model.tokenizer
        self._renderer = Renderer()
        self._intake = Intake(model.limits)
        self._closed = False
        found = model.registry
        try:
            media = MediaInputs(found, self.info, tokenizer, self._intake)
            self.requests = Requests(self._engine, tokenizer, found, media, model.sources())
            self._pooled = PooledCalls(self.requests, self.info, model.task)
            speech = Speech.of(found, self.info, tokenizer, media)
            self._spoken = SpokenCalls(self.requests, self.info, speech, self._intake)
            self._chats = ChatPrompts(self.requests, tokenizer, self._renderer, model.chat_template, media.markers)
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompts | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs in the order of the prompts.

        prompts: one or many of: a text, token ids, {"prompt": …}, {"prompt_token_ids": …}; the latter two may
        have "multi_modal_data": {modality: an item or a list of items}, for each of which there is a marker in
        the prompt (docs/media.md says what items may be). lora_request: one adapter for all, or for each prompt one,
        several with weights, or None; they are loaded when they are first used.
        sampling_params: one for all or one each, None = `get_default_sampling_params()`.
        prompt_token_ids: the old way to give ids. priority: one each, smaller is more urgent.
        Raises `BadRequest` (a ValueError) before anything runs if one prompt is wrong.
        """
        if prompt_token_ids is not None:
            if prompts is not None:
                raise BadRequest("Give `prompts` or `prompt_token_ids`, not both.", "prompts")
            prompts = prompt_token_ids
        ids = self.enqueue(prompts, sampling_params, lora_request=lora_request, priority=priority)
        return self.requests.finish(ids, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params | Sequence[Params] | None = None,
        use_tqdm: bool = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; one output each.

        Messages may have media as over HTTP, and pictures as {"type": "image_pil", "image_pil": picture}.
        chat_template: a file, a template, or the name of one of the model's. The rest is as in `ChatTemplate.render`.
        """
        prompts = self._chats.prompts(
            messages,
            chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            documents=documents,
            kwargs=chat_template_kwargs,
        )
        ids = self.requests.submit(prompts, self._default(sampling_params), lora_request, priority)
        return self.requests.finish(ids, use_tqdm)

    def beam_search(
        self, prompts: Prompts, params: BeamSearchParams, lora_request: Adapters = None, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of each prompt, best first."""
        outputs = self.generate(prompts, params, use_tqdm=use_tqdm, lora_request=lora_request)
        return [beam_output(output, self._tokenizer) for output in outputs]

    def enqueue(
        self,
        prompts: Prompts | None,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
    ) -> list[str]:
        """Add requests without waiting; their ids. `wait_for_completion` gives the outputs."""
        made = [self.requests.prompt(prompt) for prompt in as_prompts(prompts)]
        return self.requests.submit(made, self._default(sampling_params), lora_request, priority)

    def wait_for_completion(self, *, use_tqdm: bool = True) -> list[RequestOutput]:
        """Outputs of everything that was enqueued, in that order."""
        return self.requests.finish(self.requests.batch.ids, use_tqdm)

    def _default(self, params: Params | Sequence[Params] | None) -> Params | Sequence[Params]:
        return self.get_default_sampling_params() if params is None else params

    # --- pooling -----------------------------------------------------------------------------------

    def encode(
        self,
        prompts: Prompts,
        pooling_params: Pooling = None,
        *,
        pooling_task: str | None = None,
        **options: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What `pooling_task` makes of each prompt, as a tensor: [size], or [tokens, size] for tasks of tokens.

        pooling_task: one of those in `llm.tasks`; None where the model has one only, for prompts or else for tokens.
        options: lora_request and use_tqdm as for `generate`;
        truncate_prompt_tokens: texts are cut to so many, -1 = the model's longest; else longer ones raise BadRequest.
        """
        return self._pooled.encode(prompts, pooling_task, pooling_params, **options)

    def embed(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """Each prompt as a vector. options: as for `encode`."""
        return self._pooled.embed(prompts, pooling_params, **options)

    def classify(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """How likely each class is, for each prompt, in the order of the model's labels. options: as for `encode`."""
        return self._pooled.classify(prompts, pooling_params, **options)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: one with each of the others, or the first with the first and so on.

        A model with one class reads both texts of a pair; of others the embeddings are compared, by their cosine, or
        those of their tokens (the sum of the best match of each of the first text's). options: as for `encode`.
        """
        return self._pooled.score(data_1, data_2, pooling_params, **options)

    def reward(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """How good each text is, before any activation; or each token, if the model does it so. options: as there."""
        return self._pooled.reward(prompts, pooling_params, **options)

    def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        translate: bool = False,
        timestamps: bool = False,
        prompt: str = "",
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> list[Transcription]:
        """What is said in a recording, or in each of a list of them; items are as in docs/media.md.

        language: that is spoken, None = the model finds out. translate: to the model's usual language. timestamps: give
        segments with times. prompt: text that goes before. sampling_params: None = the most likely tokens.
        options: lora_request and use_tqdm as for `generate`.
        """
        task = SpeechTask(language=language, translate=translate, timestamps=timestamps, previous=prompt)
        return self._spoken.transcribe(audio, task, sampling_params, **options)

    # --- looking and ending ------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the model can do: generate, transcribe, translate, and what `encode` takes as `pooling_task`."""
        return self.info.tasks

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine, to be driven step by step."""
        from quire.engine_api.engine import LLMEngine

        return LLMEngine(self)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json asks for."""
        names = {f.name for f in fields(SamplingParams)}
        return SamplingParams(**{k: v for k, v in self.info.sampling_defaults.items() if k in names})

    def get_metrics(self) -> dict[str, Any]:
        """Counters since start and gauges of now, by the names of `quire.types.EngineStats`."""
        return asdict(self._engine.stats())

    def reset_prefix_cache(self) -> bool:
        """Forget the pages of ended requests."""
        self._engine.reset_prefix_cache()
        return True

    def close(self) -> None:
        """Free the device and end the processes; further calls fail. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._renderer.close()
            self._intake.close()
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
