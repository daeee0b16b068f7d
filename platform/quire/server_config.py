"""Settings of the server around the models."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from quire.errors import ConfigError
from quire.setting import check_choices, check_positive, setting


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
        "Most values in a JSON body (texts, numbers, …), of which an eighth may be lists, objects and their members.",
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
    enable_tokenizer_info_endpoint: bool = setting(
        "Answer GET /tokenizer_info, which shows the chat template and the special tokens.", True
    )
    metrics_prefix: str = setting("Beginning of the names of figures; vllm: for dashboards made for vLLM.", "quire:")
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
        check_choices(self)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be from 0 to 65535; got {self.port}.")
        check_positive(self, "max_body_bytes", "template_timeout_s", "stream_interval", "max_pooling_inputs")
        check_positive(self, "max_json_values", "max_text_chars", "max_response_bytes", "max_connections")
        check_positive(self, "max_header_bytes", "max_headers")
        check_positive(self, "header_timeout_s", "body_timeout_s", "keep_alive_timeout_s")
        if self.max_connections_per_address < 0:
            raise ConfigError(
                f"--max-connections-per-address must be at least 0; got {self.max_connections_per_address}."
            )
        check_positive(self, "engine_timeout_s")
        if not 0 <= self.shutdown_timeout_s < float("inf"):
            raise ConfigError(f"--shutdown-timeout-s must be at least 0; got {self.shutdown_timeout_s}.")
        if self.metrics_require_key and not self.api_key:
            raise ConfigError("--metrics-require-key needs --api-key.")
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts must be at least 0; got {self.max_restarts}.")
        check_positive(self, "gate_timeout_s", "gate_threads")
        if self.plugin_max_faults < 0:
            raise ConfigError(f"--plugin-max-faults must be at least 0; got {self.plugin_max_faults}.")
        if not re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?", self.metrics_prefix):
            raise ConfigError(
                f"--metrics-prefix has letters, digits, _ and :, no digit first; got {self.metrics_prefix!r}."
            )
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("--ssl-keyfile and --ssl-certfile go together.")
