"""`LLM`: a model in this process, for scripts and notebooks, without a server.

Methods and arguments are those of vLLM's `LLM` class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from quire.errors import BadRequest
from quire.llm.arguments import as_prompts
from quire.llm.chat import ChatPrompts
from quire.llm.lifecycle import LLMLifecycle
from quire.llm.parts import LLMParts, open_llm
from quire.llm.pooling import OfflinePooling
from quire.llm.requests import Adapters, OfflineRequests
from quire.llm.speech import OfflineTranscription
from quire.media.loader import MediaLoader
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry, SpeechTask
from quire.text.chat.template_pool import TemplatePool
from quire.text.inputs.inputs import PromptInput
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.outputs.beams import BeamSearchOutput, beam_output
from quire.text.outputs.outputs import RequestOutput
from quire.text.outputs.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from quire.text.speech.transcript import Transcription
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo

if TYPE_CHECKING:
    from quire.engine_api.engine import LLMEngine

Prompts: TypeAlias = PromptInput | Sequence[PromptInput]
Params: TypeAlias = SamplingParams | BeamSearchParams
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Pooling: TypeAlias = PoolingParams | Sequence[PoolingParams] | None


class LLM(LLMLifecycle):
    """A loaded model, used by one thread at a time.

    model: a folder, a hub id, the name of a plugin's demo model, or the parts of a model that is loaded already; then
    the other arguments have no effect. plugins: names of entry points, None = the bundled ones. settings: any field of
    `quire.settings.model_config.ModelConfig`: dtype, seed, max_model_len, task, kv_cache_memory_bytes, chat_template,
    max_num_seqs (256 unless given), tokenizer, revision, …

    Raises TypeError for an unknown argument, and a `StartupError` when the model cannot be loaded. Use it as a context
    manager, or call `close`, to free the device. `sleep`, `wake_up`, `load` and `unload` are in `LLMLifecycle`.
    """

    def __init__(
        self,
        model: str | LLMParts,
        *,
        plugins: Sequence[str] | str | None = None,
        enable_lora: bool = False,
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        opening = {"plugins": plugins, "enable_lora": enable_lora, "plugin_options": plugin_options}
        super().__init__({**opening, **settings})
        if isinstance(model, LLMParts):
            parts = model
        else:
            parts = open_llm(model, plugins, enable_lora, plugin_options, settings)
        self._parts = parts
        self._engine, self._tokenizer, registry = parts.engine, parts.tokenizer, parts.registry
        self.info: ModelInfo = parts.engine.info
        self._template_pool = TemplatePool()
        self._media_loader = MediaLoader(parts.limits)
        try:
            media = MultimodalProcessor(registry, self.info, self._tokenizer, self._media_loader)
            self.requests = OfflineRequests(parts, media)
            self._pooling = OfflinePooling(self.requests, self.info, parts.task)
            speech = TranscriptionModel.from_model_info(registry, self.info, self._tokenizer, media)
            self._transcription = OfflineTranscription(self.requests, self.info, speech, self._media_loader)
            self._chats = ChatPrompts(
                self.requests, self._tokenizer, self._template_pool, parts.chat_template, media.markers
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_engine(
        cls, engine: Any, tokenizer: Tokenizer, registry: Registry, chat_template: str | None = None
    ) -> LLM:
        """An `LLM` on an existing engine, which `close` then closes too."""
        return cls(LLMParts(engine=engine, tokenizer=tokenizer, registry=registry, chat_template=chat_template))

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
        """Complete each prompt. The outputs are in the order of the prompts.

        prompts: one or many of: a text, token ids, {"prompt": …}, {"prompt_token_ids": …}. The latter two may have
        "multi_modal_data": {modality: item or list of items}, with a marker in the prompt for each item (docs/media.md
        lists the items). sampling_params: one for all prompts or one for each, None = `get_default_sampling_params()`.
        prompt_token_ids: vLLM's deprecated argument for ids. lora_request: one adapter for all prompts, or for each
        prompt one adapter, several weighted adapters or None; adapters are loaded on first use. priority: one number
        for each prompt; smaller is more urgent.
        Raises `BadRequest` (a ValueError) before anything runs if one of the prompts is invalid.
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
        """Answer one or many conversations, with one output for each.

        Messages may contain media as over HTTP, and PIL images as {"type": "image_pil", "image_pil": image}.
        chat_template: a file, a template, or the name of one of the model's templates. The other arguments are those of
        `ChatTemplate.render`.
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
        """Add requests without waiting for them, and return their ids. `wait_for_completion` returns the outputs."""
        built = [self.requests.prompt(prompt) for prompt in as_prompts(prompts)]
        return self.requests.submit(built, self._default(sampling_params), lora_request, priority)

    def wait_for_completion(self, *, use_tqdm: bool = True) -> list[RequestOutput]:
        """Finish all enqueued requests and return their outputs in the order in which they were added."""
        return self.requests.finish(self.requests.runner.ids, use_tqdm)

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
        """Pool each prompt into a tensor: [size], or [tokens, size] for token-wise tasks.

        pooling_task: one of `llm.tasks`, None = the only one for prompts, or else the only one for tokens.
        options: lora_request and use_tqdm as for `generate`; truncate_prompt_tokens: the length to which texts are
        truncated, -1 = the model's maximum; without it, longer texts raise BadRequest.
        """
        return self._pooling.encode(prompts, pooling_task, pooling_params, **options)

    def embed(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """The embedding vector of each prompt. options: as for `encode`."""
        return self._pooling.embed(prompts, pooling_params, **options)

    def classify(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """The class probabilities of each prompt, in the order of the model's labels. options: as for `encode`."""
        return self._pooling.classify(prompts, pooling_params, **options)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """Similarity scores of text pairs: one text with each of the others, or the lists pairwise.

        A model with one class is a cross-encoder and reads both texts of a pair. Other models embed each text: vectors
        are compared by cosine similarity, token vectors by MaxSim (ColBERT). options: as for `encode`.
        """
        return self._pooling.score(data_1, data_2, pooling_params, **options)

    def reward(
        self, prompts: Prompts, *, pooling_params: Pooling = None, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Rewards of each prompt, or of each token, without an activation. options: as for `encode`."""
        return self._pooling.reward(prompts, pooling_params, **options)

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
        """Transcribe one recording or each of a list of recordings. docs/media.md lists the possible items.

        language: the spoken language, None = the model detects it. translate: translate into the model's default target
        language. timestamps: also return segments with times. prompt: text that precedes the recording.
        sampling_params: None = greedy decoding. options: lora_request and use_tqdm as for `generate`.
        """
        task = SpeechTask(language=language, translate=translate, timestamps=timestamps, previous=prompt)
        return self._transcription.transcribe(audio, task, sampling_params, **options)

    # --- information -----------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the model: generate, transcribe, translate, and the pooling tasks of `encode`."""
        return self.info.tasks

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine, for callers that run it step by step."""
        from quire.engine_api.engine import LLMEngine

        return LLMEngine(self)

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of the model's generation_config.json."""
        names = {f.name for f in fields(SamplingParams)}
        return SamplingParams(**{k: v for k, v in self.info.sampling_defaults.items() if k in names})

    def get_metrics(self) -> dict[str, Any]:
        """Counters since the start and current gauges, named as in `quire.types.EngineStats`."""
        return asdict(self._engine.stats())

    def reset_prefix_cache(self) -> bool:
        """Remove the pages of finished requests from the prefix cache."""
        self._engine.reset_prefix_cache()
        return True
