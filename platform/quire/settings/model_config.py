"""The settings of a model. Flags, YAML keys, QUIRE_* variables and docs are all made from these declarations.

`quire.settings.server_config.ServerConfig` has the settings of the server. The text in `setting(...)` is the help of
the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import ConfigError
from quire.settings.attention_backends import backend_name
from quire.settings.model_groups.kv_tiers_config import KvTiersConfig
from quire.settings.model_groups.residency_config import ResidencyConfig
from quire.settings.model_groups.weights_cache_config import WeightsCacheConfig
from quire.settings.setting import check_choices, check_positive, setting
from quire.settings.speculative_config import KEYS, with_flags


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ResidencyConfig, WeightsCacheConfig, KvTiersConfig):
    """Settings of one model: how to load it and how to run it."""

    model: str = setting("Folder or hub id of the model.", "")
    served_model_name: tuple[str, ...] = setting(
        "Names by which clients may call the model; responses contain the first.", ()
    )
    tokenizer: str | None = setting("Folder or hub id of the tokenizer (default: the model's).")
    tokenizer_mode: str = setting(
        "Tokenizer implementation: auto (tokenizer.json, else transformers), slow (the Python one of transformers, "
        "if it exists), mistral (mistral-common, which also builds chat prompts).",
        "auto",
        choices=("auto", "slow", "mistral"),
    )
    trust_remote_code: bool = setting(
        "Run Python code from the checkpoint for its config and tokenizer, and for the model itself if a fallback "
        "(--model-impl) builds it.",
        False,
    )
    model_impl: str = setting(
        "What builds the model: auto (the plugin of its architecture, else a fallback), quire (only plugins of "
        "architectures), or the name of a fallback, such as transformers, also where a plugin has the architecture.",
        "auto",
    )
    revision: str | None = setting("Branch, tag or commit of the model on the hub.")
    tokenizer_revision: str | None = setting("Branch, tag or commit of the tokenizer on the hub.")
    hub: str = setting("Hub to download models from.", "huggingface", choices=("huggingface", "modelscope"))
    download_dir: str | None = setting("Folder for downloads (default: the hub's cache folder).")
    load_format: str = setting(
        "Format of the weight files to load; dummy: random weights.",
        "auto",
        choices=("auto", "safetensors", "pt", "dummy"),
    )
    dtype: str = setting(
        "Data type of weights and activations; auto: that of the checkpoint, but bfloat16 instead of float32 on a GPU.",
        "auto",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: str | None = setting(
        "Quantize the weights when they are loaded: int8, int4, int4-asym, fp8, or a method of a plugin (default: as "
        "the checkpoint stores them)."
    )
    quantization_group_size: int | None = setting(
        "Number of inputs that share a scale, a multiple of 16 (default: chosen by the method of --quantization)."
    )
    quantization_ignore: tuple[str, ...] = setting(
        "Matrices that --quantization leaves in the data type of the model: globs over names such as lm_head, "
        "q_proj or model.layers.0.*.",
        (),
    )
    activation_bits: int = setting(
        "Bits of the inputs of quantized matrices: 8 is faster, 16 does not round them. Floating-point formats (fp8, "
        "nf4) always use 16.",
        8,
    )
    kv_cache_dtype: str = setting(
        "Data type of the KV cache; auto: that of the activations; int4: for head dimensions that are multiples of 32.",
        "auto",
        choices=("auto", "int8", "int4"),
    )
    attention_backend: str = setting(
        "What computes attention; auto: the fastest that runs here; else triton, torch, xformers, flashinfer, "
        "flash-attn or that of a plugin (`platform doctor` lists them).",
        "auto",
    )
    device: str = setting("Device to run on; auto: the GPU if there is one.", "auto", choices=("auto", "cpu", "cuda"))
    max_model_len: int | None = setting(
        "Maximum length of prompt plus output in tokens, e.g. 4096 or 4k (default: from the model's config)."
    )
    seed: int = setting("Random seed for requests without a seed.", 0)
    chat_template: str | None = setting("Chat template: a file, or the template itself (default: from the tokenizer).")
    response_role: str = setting("Role name in chat responses.", "assistant")
    generation_config: str = setting(
        "Source of default sampling parameters: auto (the model's generation_config.json) or none.",
        "auto",
        choices=("auto", "none"),
    )
    override_generation_config: Mapping[str, Any] = setting(
        "JSON object of default sampling parameters; overrides generation_config.json.", {}
    )
    max_num_batched_tokens: int = setting(
        "Maximum number of tokens computed in one step; a step that delays streams has fewer.", 2048
    )
    max_num_seqs: int = setting("Maximum number of sequences running at once.", 128)
    max_num_queued_reqs: int = setting("Maximum number of unfinished requests; further requests get status 503.", 2048)
    enable_chunked_prefill: bool = setting("Compute long prompts in chunks over several steps.", True)
    enable_prefix_caching: bool = setting("Reuse cached KV pages for prompts with the same beginning.", True)
    scheduling_policy: str = setting(
        "Order in which requests run and are preempted: fcfs, priority, or a policy of a plugin.", "fcfs"
    )
    preemption: str = setting(
        "How to preempt a sequence when the KV cache is full; auto: swap while --swap-space lasts, else recompute.",
        "auto",
        choices=("auto", "recompute", "swap"),
    )
    max_loras: int = setting("Maximum number of adapters on the device, and therefore in one batch.", 8)
    max_lora_rank: int = setting("Maximum rank of an adapter.", 64)
    max_cpu_loras: int | None = setting(
        "Maximum number of adapters in CPU memory; others are read from disk when needed (default: 32, or --max-loras "
        "if that is larger)."
    )
    default_mm_loras: Mapping[str, Any] = setting(
        'Folders of adapters for prompts with a modality whose request names no adapter: {"audio": "my-adapter"} '
        "(default: those of the model's folder).",
        {},
    )
    lora_load_timeout_s: float = setting("Maximum time in seconds to read the files of an adapter.", 120.0)
    page_size: int = setting("Number of tokens in a page of the KV cache.", 16)
    gpu_memory_utilization: float = setting("Fraction of the GPU memory that all models together may use.", 0.9)
    kv_cache_memory_bytes: int | None = setting(
        "Size of the KV cache in bytes, the state of recurrent blocks included, e.g. 2G (default: see the section "
        "Memory in docs/serving.md)."
    )
    num_pages: int | None = setting("Size of the KV cache in pages, instead of in bytes.")
    num_state_checkpoints: int | None = setting(
        "Checkpoints of the state of recurrent blocks that the prefix cache may hold (default: a quarter of the memory "
        "of the KV cache)."
    )
    state_checkpoint_interval: int | None = setting(
        "Pages between two checkpoints of the state of one sequence; 0: only at the ends of prompts and where prompts "
        "with a common beginning diverge (default: about as many pages as take the memory of a checkpoint)."
    )
    max_num_encoder_tokens: int = setting(
        "Maximum number of image, video or audio embeddings computed in one call of the model's encoder.", 4096
    )
    encoder_cache_bytes: int = setting(
        "Size in bytes of the cache of image, video and audio embeddings; 0 disables it.",
        256 << 20,
    )
    swap_space: float = setting("CPU memory in GiB for KV pages and state of preempted sequences.", 0.0)
    task: str = setting(
        "Task to serve the model for; auto: every task that the model supports.",
        "auto",
        choices=("auto", "generate", "embed", "classify", "score", "reward"),
    )
    pooling: str = setting(
        "How to pool hidden states into an embedding: last token, first token (cls) or mean of all tokens; auto: as "
        "the model's folder specifies.",
        "auto",
        choices=("auto", "last", "cls", "mean"),
    )
    matryoshka: bool = setting(
        "Allow requests to shorten embeddings (`dimensions`), for models trained for it that do not declare it.", False
    )
    max_logprobs: int = setting(
        "Maximum number of log-probabilities per token that a request may ask for; -1: no limit, so that a request may "
        "ask for the whole vocabulary.",
        20,
    )
    structured_outputs_backend: str = setting(
        "Default back end for structured output; auto: the fastest one that supports the constraint.",
        "auto",
    )
    structured_outputs_timeout_s: float = setting("Maximum time in seconds to compile an output constraint.", 10.0)
    structured_outputs_cache_bytes: int = setting(
        "Size in bytes of the cache of compiled constraints; the sizes of some are estimates.", 256 << 20
    )
    structured_outputs_token_time_s: float = setting(
        "Maximum average CPU time in seconds per token of a constraint; a slower constraint fails its request.",
        0.01,
    )
    speculative_config: Mapping[str, Any] = setting(
        'Speculative decoding: {"method": "ngram", "num_speculative_tokens": 5} and settings of the method (see '
        "docs/speculation.md; default: off).",
        {},
    )
    speculative_model: str | None = setting(
        "Folder or hub id of what drafts, `model` of --speculative-config; [ngram]: prompt lookup.",
        also=("spec_model",),
    )
    speculative_method: str | None = setting("How to draft, `method` of --speculative-config.", also=("spec_method",))
    num_speculative_tokens: int | None = setting(
        "Maximum number of tokens to draft for a sequence in a step, as in --speculative-config.", also=("spec_tokens",)
    )
    ngram_prompt_lookup_max: int | None = setting(
        "Longest n-gram of prompt lookup, `prompt_lookup_max` of --speculative-config."
    )
    ngram_prompt_lookup_min: int | None = setting(
        "Shortest n-gram of prompt lookup, `prompt_lookup_min` of --speculative-config."
    )
    spec_acceptance: str | None = setting(
        "Which drafts are accepted, `acceptance` of --speculative-config: exact (the answer does not change), or what "
        "docs/speculation.md lists.",
        also=("spec_decoding_acceptance_method",),
    )
    speculative_lora: str | None = setting(
        "Folder of an adapter of the draft model, or a JSON object of folders by name; `lora` of --speculative-config "
        "(default: it has none)."
    )
    enforce_eager: bool = setting("Capture no CUDA graphs of decode steps; slower on a GPU.", False)
    batch_invariant: bool = setting(
        "Make each output independent of the other requests in its batch, bit by bit (see docs/serving.md).", False
    )
    limit_mm_per_prompt: Mapping[str, Any] = setting(
        'Maximum number of items per modality in a prompt: {"image": 4, "video": 1} or image=4,video=1 '
        "(default: 64 each).",
        {},
    )
    allowed_local_media_path: str | None = setting(
        "Folder whose files requests may name in file: URLs (default: file: URLs are refused)."
    )
    allowed_media_domains: tuple[str, ...] = setting(
        "Host names from which media may be fetched (default: any host).", ()
    )
    allow_private_media_addresses: bool = setting(
        "Also fetch media from private networks and from this machine; use it only if all clients are trusted.", False
    )
    max_media_bytes: int = setting("Maximum total size in bytes of the media in a prompt.", 64 << 20)
    max_image_pixels: int = setting("Maximum number of pixels of an image or video frame.", 89_478_485)
    max_prompt_pixels: int = setting("Maximum total number of pixels of all images in a prompt.", 4 * 89_478_485)
    max_media_seconds: float = setting("Maximum length of an audio or video in seconds.", 600.0)
    max_video_frames: int = setting("Maximum number of frames sampled from a video.", 128)
    media_timeout_s: float = setting(
        "Maximum time in seconds to fetch an image, video or audio file; decoding it may take as long again.", 15.0
    )
    media_decode_timeout_s: float = setting("Maximum time in seconds to decode all media of a prompt.", 30.0)
    max_media_redirects: int = setting("Maximum number of redirects to follow when fetching media.", 3)

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_queued_reqs")
        check_positive(self, "page_size", "kv_cache_memory_bytes", "num_pages")
        self._check_quantization()
        self._check_ranks()
        self._check_residency()
        self._check_kv_tiers()
        check_positive(self, "weights_cache_bytes")
        _ = self.speculation  # raises for settings that contradict each other
        check_positive(self, "max_loras", "max_lora_rank", "max_num_encoder_tokens")
        check_positive(self, "max_media_bytes", "max_image_pixels", "max_media_seconds", "max_video_frames")
        check_positive(self, "structured_outputs_timeout_s", "structured_outputs_token_time_s")
        check_positive(self, "max_prompt_pixels", "media_decode_timeout_s", "media_timeout_s", "lora_load_timeout_s")
        if self.max_media_redirects < 0:
            raise ConfigError(f"--max-media-redirects must be at least 0; got {self.max_media_redirects}.")
        of_states = "num_state_checkpoints", "state_checkpoint_interval"
        for name in ("encoder_cache_bytes", "structured_outputs_cache_bytes", *of_states):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 0; got {getattr(self, name)}.")
        if self.max_logprobs < -1:
            raise ConfigError(f"--max-logprobs must be at least 0, or -1 for any number; got {self.max_logprobs}.")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"--max-cpu-loras must be at least --max-loras ({self.max_loras}), since adapters on the device are "
                f"in CPU memory too; got {self.max_cpu_loras}."
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization must be above 0, at most 1; got {self.gpu_memory_utilization}."
            )
        if self.swap_space < 0:
            raise ConfigError(f"--swap-space must be at least 0 GiB; got {self.swap_space}.")
        if self.preemption == "swap" and not self.swap_space:
            raise ConfigError("--preemption swap needs --swap-space above 0.")

    def _check_quantization(self) -> None:
        if (size := self.quantization_group_size) is not None and (size < 16 or size % 16):
            raise ConfigError(f"--quantization-group-size must be a multiple of 16; got {size}.")
        if self.activation_bits not in (8, 16):
            raise ConfigError(f"--activation-bits must be 8 or 16; got {self.activation_bits}.")
        if self.quantization is None and (size or self.quantization_ignore):
            raise ConfigError("--quantization-group-size and --quantization-ignore need --quantization.")

    @property
    def speculation(self) -> Mapping[str, Any]:
        """What --speculative-config and vLLM's older flags say about speculative decoding; empty = no drafter."""
        return with_flags(self.speculative_config, {name: getattr(self, name) for name in KEYS})

    @property
    def attention_implementation(self) -> str:
        """--attention-backend by the name that it has here."""
        return backend_name(self.attention_backend)

    @property
    def name(self) -> str:
        """The model's name in responses: the first served name, else the folder or hub id."""
        return self.served_model_name[0] if self.served_model_name else self.model
