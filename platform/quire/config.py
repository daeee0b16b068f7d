"""The one declaration of every setting: command-line flags, YAML keys and QUIRE_* variables come from it.

`ModelConfig` holds what one model can have for itself, `ServerConfig` what there is one of per server.
The text behind `setting(...)` is the help of the flag. `quire.options` parses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from quire.errors import ConfigError


def setting(
    help: str,
    default: Any = None,
    *,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    also: Sequence[str] = (),
) -> Any:
    """A field of a config with its help text. also: other names of its flag and YAML key, as vLLM has them."""
    metadata = {"help": help, "choices": choices, "metavar": metavar, "also": also}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _check_choices(config: Any) -> None:
    for f in fields(config):
        choices, value = f.metadata.get("choices"), getattr(config, f.name)
        if choices and value not in choices:
            raise ConfigError(f"--{f.name.replace('_', '-')} must be one of {', '.join(choices)}; got {value!r}.")


def _check_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0; got {value}.")


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
    max_media_seconds: float = setting("Longest audio or video.", 600.0)
    max_video_frames: int = setting("Most frames taken out of one video.", 128)
    media_timeout_s: float = setting("Longest time to fetch one medium, and to decode an audio or a video.", 15.0)
    max_media_redirects: int = setting("Most redirects that are followed to a medium.", 3)

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_positive(self, "max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_queued_reqs")
        _check_positive(self, "page_size", "kv_cache_memory_bytes", "num_pages")
        _check_positive(self, "max_loras", "max_lora_rank", "max_num_encoder_tokens")
        _check_positive(self, "max_media_bytes", "max_image_pixels", "max_media_seconds", "max_video_frames")
        _check_positive(self, "structured_outputs_timeout_s", "structured_outputs_token_time_s")
        _check_positive(self, "media_timeout_s", "lora_load_timeout_s")
        if self.max_media_redirects < 0:
            raise ConfigError(f"--max-media-redirects must be at least 0; got {self.max_media_redirects}.")
        if self.encoder_cache_bytes < 0:
            raise ConfigError(f"--encoder-cache-bytes must be at least 0; got {self.encoder_cache_bytes}.")
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


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only; other names than localhost count as not."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The server around the models."""

    host: str = setting("Address to listen on.", "127.0.0.1")
    port: int = setting("Port to listen on.", 8000)
    root_path: str = setting("Prefix that a proxy strips.", "")
    api_key: tuple[str, ...] = setting("Keys clients must send; any one is enough.", ())
    admin_api_key: tuple[str, ...] = setting(
        "Keys for routes that change the server (loading adapters); other keys are not accepted there.", ()
    )
    metrics_require_key: bool = setting("Ask for a key at /metrics too.", False)
    prefix_cache_scope: str = setting(
        "Who shares the prefix cache: all clients of the server, or each client (API key, else address) has its own; "
        "auto: client with several keys, else server.",
        "auto",
        choices=("auto", "server", "client"),
    )
    allowed_origins: tuple[str, ...] = setting("CORS origins.", ())
    allowed_methods: tuple[str, ...] = setting("CORS methods.", ("*",))
    allowed_headers: tuple[str, ...] = setting("CORS headers.", ("*",))
    allow_credentials: bool = setting("CORS credentials.", False)
    ssl_keyfile: str | None = setting("TLS key file.")
    ssl_certfile: str | None = setting("TLS certificate file.")
    ssl_ca_certs: str | None = setting("TLS authorities that client certificates must come from.")
    max_body_bytes: int = setting("Largest request body, unpacked if it was sent compressed.", 32 << 20)
    max_json_values: int = setting(
        "Most values in a JSON body (texts, numbers, …), of which a sixteenth may be lists, objects and their members.",
        1 << 19,
    )
    max_text_chars: int = setting("Longest text that is tokenized, in characters.", 4 << 20)
    max_response_bytes: int = setting(
        "Largest answer that is sent as a whole, as estimated before it is computed from its tokens and the "
        "log-probabilities asked for.",
        32 << 20,
    )
    max_connections: int = setting(
        "Most connections; to take a new one, one without a request is closed where there is one, else the new one is "
        "refused with 503.",
        4096,
    )
    max_connections_per_address: int = setting(
        "Most connections of one address; 0: any number, as behind a proxy, whose address all clients share.", 0
    )
    max_header_bytes: int = setting("Most bytes of a request's line and headers.", 64 << 10)
    max_headers: int = setting("Most headers of a request.", 100)
    header_timeout_s: float = setting("Longest time from the first byte of a request to the end of its headers.", 20.0)
    body_timeout_s: float = setting(
        "Longest time that nothing of a body comes; it must not come slower than 1 KB/s.", 30.0
    )
    keep_alive_timeout_s: float = setting("How long a connection without a request stays open.", 75.0)
    max_pooling_inputs: int = setting(
        "Most texts, documents or pairs of a request for embeddings, classes or scores.", 2048
    )
    trust_request_chat_template: bool = setting("Let requests bring a chat template.", False)
    template_timeout_s: float = setting("Longest time a chat template may render.", 5.0)
    enable_request_id_headers: bool = setting("Echo X-Request-Id.", False)
    enable_prompt_tokens_details: bool = setting("Report cached tokens and those of media in usage.", False)
    enable_force_include_usage: bool = setting("End every stream with usage.", False)
    stream_interval: int = setting("Tokens of a stream that are sent together; the first and the last do not wait.", 1)
    disable_fastapi_docs: bool = setting("No /docs, /redoc and /openapi.json.", False)
    disable_access_log: bool = setting("No log line per request.", False, also=("disable_uvicorn_access_log",))
    disable_log_stats: bool = setting("No log line every ten seconds about the work of each model.", False)
    log_level: str = setting(
        "How much to log.",
        "info",
        choices=("debug", "info", "warning", "error", "critical"),
        also=("uvicorn_log_level",),
    )
    shutdown_timeout_s: float = setting(
        "Longest wait for requests in flight at shutdown.", 30.0, also=("shutdown_timeout",)
    )
    engine_timeout_s: float = setting(
        "Longest time without a finished step while there is work; then the engine process is restarted.", 300.0
    )
    max_restarts: int = setting(
        "How often the engine process may be restarted within ten minutes; then the server ends with status 1.", 5
    )
    plugin_max_faults: int = setting(
        "Faults in a row after which a function of a plugin is not called for a minute; 0: never.", 100
    )
    gate_timeout_s: float = setting("Longest time the request gates of plugins may take for one request.", 10.0)
    gate_threads: int = setting("Threads that request gates of plugins run in.", 16)
    lora_modules: tuple[str, ...] = setting(
        'Adapters to load at the start: name=folder, or JSON: {"name": …, "path": …, "base_model_name": …}.', ()
    )
    lora_root: tuple[str, ...] = setting(
        "Folders in which the adapters must lie that requests load by a path (default: any, if the server listens on a "
        "loopback address or --admin-api-key is set; else none).",
        (),
    )
    lora_cache_dir: str | None = setting(
        "Where plugins keep adapters that they download (default: ~/.cache/quire/adapters)."
    )
    enable_auto_tool_choice: bool = setting(
        "Let the model choose whether to call tools (default: only where no model is named, for the demos).", False
    )
    tool_call_parser: str | None = setting("Format of tool calls (default: recognised from the chat template).")
    exclude_tools_when_tool_choice_none: bool = setting(
        "Leave tools out of the prompt of requests with tool_choice none.", False
    )
    reasoning_parser: str | None = setting(
        "Format of reasoning, which is then kept apart from the content; auto: recognised from the chat template "
        "(default: none)."
    )

    @property
    def caches_are_apart(self) -> bool:
        """Whether each client has a prefix cache of its own."""
        several = len({*self.api_key, *self.admin_api_key}) > 1 if self.api_key else False
        return self.prefix_cache_scope == "client" or (self.prefix_cache_scope == "auto" and several)

    @property
    def adapter_roots(self) -> tuple[str, ...] | None:
        """Folders in which adapters must lie that requests load by a path; None: any folder will do."""
        trusted = is_loopback(self.host) or bool(self.admin_api_key)
        return None if trusted and not self.lora_root else self.lora_root

    def __post_init__(self) -> None:
        _check_choices(self)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be from 0 to 65535; got {self.port}.")
        _check_positive(self, "max_body_bytes", "template_timeout_s", "stream_interval", "max_pooling_inputs")
        _check_positive(self, "max_json_values", "max_text_chars", "max_response_bytes", "max_connections")
        _check_positive(self, "max_header_bytes", "max_headers")
        _check_positive(self, "header_timeout_s", "body_timeout_s", "keep_alive_timeout_s")
        if self.max_connections_per_address < 0:
            raise ConfigError(
                f"--max-connections-per-address must be at least 0; got {self.max_connections_per_address}."
            )
        _check_positive(self, "engine_timeout_s")
        if not 0 <= self.shutdown_timeout_s < float("inf"):
            raise ConfigError(f"--shutdown-timeout-s must be at least 0; got {self.shutdown_timeout_s}.")
        if self.metrics_require_key and not self.api_key:
            raise ConfigError("--metrics-require-key needs --api-key.")
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts must be at least 0; got {self.max_restarts}.")
        _check_positive(self, "gate_timeout_s", "gate_threads")
        if self.plugin_max_faults < 0:
            raise ConfigError(f"--plugin-max-faults must be at least 0; got {self.plugin_max_faults}.")
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("--ssl-keyfile and --ssl-certfile go together.")
