"""The one declaration of every setting: command-line flags, YAML keys and QUIRE_* variables come from it.

`ModelConfig` holds what one model can have for itself, `quire.server_config.ServerConfig` what a server has once.
The text behind `setting(...)` is the help of the flag. `quire.options` parses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import ConfigError
from quire.setting import check_choices, check_positive, setting


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """How to load and run one model."""

    model: str = setting("Folder or hub id of the model.", "")
    served_model_name: tuple[str, ...] = setting("Names clients may use; answers carry the first.", ())
    tokenizer: str | None = setting("Folder or hub id of the tokenizer (default: the model's).")
    tokenizer_mode: str = setting(
        "What reads the tokenizer: auto (tokenizer.json, else transformers), slow (transformers' tokenizers in Python, "
        "where there is one), mistral (mistral-common, which makes the prompts of chats too).",
        "auto",
        choices=("auto", "slow", "mistral"),
    )
    trust_remote_code: bool = setting(
        "Run the code that a checkpoint brings for its config and its tokenizer. A model's own code is never run: "
        "architectures come from plugins.",
        False,
    )
    revision: str | None = setting("Branch, tag or commit on the hub.")
    tokenizer_revision: str | None = setting("Branch, tag or commit of the tokenizer.")
    hub: str = setting("Where ids are downloaded from.", "huggingface", choices=("huggingface", "modelscope"))
    download_dir: str | None = setting("Folder for downloads (default: the hub's cache).")
    load_format: str = setting(
        "Weights to read; dummy makes random ones.", "auto", choices=("auto", "safetensors", "pt", "dummy")
    )
    dtype: str = setting(
        "Data type of weights and activations; auto: the checkpoint's, float32 becoming bfloat16 on a GPU.",
        "auto",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: str | None = setting("Hold the weights in fewer bits: int8, or what a plugin brings (default: no).")
    kv_cache_dtype: str = setting(
        "Data type of the KV cache; auto: that of the activations.", "auto", choices=("auto", "int8")
    )
    device: str = setting("Where to run.", "auto", choices=("auto", "cpu", "cuda"))
    max_model_len: int | None = setting("Longest prompt plus output in tokens, e.g. 4096 or 4k (default: the model's).")
    seed: int = setting("Seed of requests that bring none.", 0)
    chat_template: str | None = setting("Chat template: a file or the template itself (default: the tokenizer's).")
    response_role: str = setting("Role name in chat answers.", "assistant")
    generation_config: str = setting(
        "Sampling defaults from the model's generation_config.json, or none.", "auto", choices=("auto", "none")
    )
    override_generation_config: Mapping[str, Any] = setting("JSON map of sampling defaults that win over the file.", {})
    max_num_batched_tokens: int = setting("Most tokens computed in one step.", 2048)
    max_num_seqs: int = setting("Most sequences running at once (concurrency).", 128)
    max_num_queued_reqs: int = setting("Most requests accepted and unfinished; more are refused with status 503.", 2048)
    enable_chunked_prefill: bool = setting("Split long prompts over steps.", True)
    enable_prefix_caching: bool = setting("Keep the KV cache of ended sequences for prompts that begin alike.", True)
    scheduling_policy: str = setting("Order of admission and preemption: fcfs, priority, or a plugin's.", "fcfs")
    preemption: str = setting(
        "What happens to a sequence that must give up its pages; auto: swap while there is space, else recompute.",
        "auto",
        choices=("auto", "recompute", "swap"),
    )
    max_loras: int = setting("Most adapters on the device, and so in one batch.", 8)
    max_lora_rank: int = setting("Largest rank of an adapter.", 64)
    max_cpu_loras: int | None = setting(
        "Most adapters in host memory; others are read from disk when they are named (default: 32, or --max-loras)."
    )
    lora_load_timeout_s: float = setting("Longest time to read the files of an adapter.", 120.0)
    page_size: int = setting("Tokens in a page of the KV cache.", 16)
    gpu_memory_utilization: float = setting("Share of the GPU's memory that all models together may use.", 0.9)
    kv_cache_memory_bytes: int | None = setting(
        "Bytes for the KV cache, e.g. 2G (default: measured on a GPU; on a CPU see Memory)."
    )
    num_pages: int | None = setting("Pages of the KV cache, instead of a number of bytes.")
    max_num_encoder_tokens: int = setting(
        "Most embeddings of pictures and other media computed in one call of the model's tower.", 4096
    )
    encoder_cache_bytes: int = setting(
        "Bytes for cached embeddings of pictures and other media, used when the same is sent again; 0: no cache.",
        256 << 20,
    )
    swap_space: float = setting("GiB of host memory for pages of preempted sequences.", 0.0)
    task: str = setting(
        "What to serve the model for; auto: all that it can do.",
        "auto",
        choices=("auto", "generate", "embed", "classify", "score", "reward"),
    )
    pooling: str = setting(
        "Which hidden states make an embedding: the last token's, the first's (cls), the mean of all; auto: what the "
        "model's folder says.",
        "auto",
        choices=("auto", "last", "cls", "mean"),
    )
    matryoshka: bool = setting(
        "Let requests ask for shorter embeddings of a model that was trained for it, but does not say so.", False
    )
    max_logprobs: int = setting(
        "Most log-probabilities that a request may ask for at each position; -1: any number, and -1 for the whole "
        "vocabulary.",
        20,
    )
    structured_outputs_backend: str = setting(
        "Back end for structured output where a request names none; auto: those that can, the fastest first.",
        "auto",
    )
    structured_outputs_timeout_s: float = setting("Longest time to compile a constraint on the output.", 10.0)
    structured_outputs_cache_bytes: int = setting(
        "Bytes of compiled constraints kept for requests to come; the size of some is estimated.", 256 << 20
    )
    structured_outputs_token_time_s: float = setting(
        "Seconds of a core that a constraint may take for each token on average; one that takes more is an error.", 0.01
    )
    batch_invariant: bool = setting(
        "Make every answer, to the last bit, independent of the requests computed with it; slower.", False
    )
    limit_mm_per_prompt: Mapping[str, Any] = setting(
        'Most items of each modality in a prompt: {"image": 4, "video": 1} or image=4,video=1 (default: 64 each).', {}
    )
    allowed_local_media_path: str | None = setting("Folder of the files that file: URLs may name (default: none may).")
    allowed_media_domains: tuple[str, ...] = setting("Hosts that media may be fetched from (default: any).", ())
    allow_private_media_addresses: bool = setting(
        "Fetch media from private networks and this machine too; only where every client is trusted.", False
    )
    max_media_bytes: int = setting("Most bytes of the media of one prompt, together.", 64 << 20)
    max_image_pixels: int = setting("Most pixels of an image or of a frame of a video.", 89_478_485)
    max_prompt_pixels: int = setting("Most pixels of all images of a prompt together.", 4 * 89_478_485)
    max_media_seconds: float = setting("Longest audio or video.", 600.0)
    max_video_frames: int = setting("Most frames taken out of one video.", 128)
    media_timeout_s: float = setting("Longest time to fetch one medium, and to decode one.", 15.0)
    media_decode_timeout_s: float = setting("Longest time to decode all media of one prompt.", 30.0)
    max_media_redirects: int = setting("Most redirects that are followed to a medium.", 3)

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_queued_reqs")
        check_positive(self, "page_size", "kv_cache_memory_bytes", "num_pages")
        check_positive(self, "max_loras", "max_lora_rank", "max_num_encoder_tokens")
        check_positive(self, "max_media_bytes", "max_image_pixels", "max_media_seconds", "max_video_frames")
        check_positive(self, "structured_outputs_timeout_s", "structured_outputs_token_time_s")
        check_positive(self, "max_prompt_pixels", "media_decode_timeout_s")
        check_positive(self, "media_timeout_s", "lora_load_timeout_s")
        if self.max_media_redirects < 0:
            raise ConfigError(f"--max-media-redirects must be at least 0; got {self.max_media_redirects}.")
        for name in ("encoder_cache_bytes", "structured_outputs_cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 0; got {getattr(self, name)}.")
        if self.max_logprobs < -1:
            raise ConfigError(f"--max-logprobs must be at least 0, or -1 for any number; got {self.max_logprobs}.")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"--max-cpu-loras must be at least --max-loras ({self.max_loras}), since those with a seat are in host "
                f"memory too; got {self.max_cpu_loras}."
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization must be above 0, at most 1; got {self.gpu_memory_utilization}."
            )
        if self.swap_space < 0:
            raise ConfigError(f"--swap-space must be at least 0 GiB; got {self.swap_space}.")
        if self.preemption == "swap" and not self.swap_space:
            raise ConfigError("--preemption swap needs --swap-space above 0.")

    @property
    def name(self) -> str:
        """What the model is called in answers: the first of its names, else what it was named by."""
        return self.served_model_name[0] if self.served_model_name else self.model
