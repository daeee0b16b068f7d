"""The settings of the HTTP server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any

from quire.errors import ConfigError
from quire.params.pooling import MAX_POOLING_INPUTS
from quire.settings.setting import check_choices, check_positive, setting

MAX_REPLICAS = 256
"""Engine processes of one server; a mistyped number must not fill the machine with processes."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listening address. Of host names, only localhost counts."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings that a server has once, whatever the number of its models."""

    host: str = setting("Address to listen on.", "127.0.0.1")
    port: int = setting("Port to listen on.", 8000)
    root_path: str = setting("URL path prefix, if a proxy in front of the server strips one.", "")
    api_key: tuple[str, ...] = setting("Accepted API keys; clients must send one of them.", ())
    admin_api_key: tuple[str, ...] = setting(
        "API keys for routes that change the server, such as loading adapters; other keys are refused there.", ()
    )
    model_aliases: Mapping[str, Any] = setting(
        "Further names of models that can be changed while the server runs: from each alias to a model, or to a list "
        "of models with a `weight` each, in whose proportion they get the requests.",
        {},
    )
    metrics_require_key: bool = setting("Require an API key for /metrics too.", False)
    prefix_cache_scope: str = setting(
        "Which requests share the prefix cache: those of all clients (server), or only those with the same API key or "
        "address (client); auto: client if there are several keys, else server.",
        "auto",
        choices=("auto", "server", "client"),
    )
    allowed_origins: tuple[str, ...] = setting("Allowed CORS origins.", ())
    allowed_methods: tuple[str, ...] = setting("Allowed CORS methods.", ("*",))
    allowed_headers: tuple[str, ...] = setting("Allowed CORS headers.", ("*",))
    allow_credentials: bool = setting("Allow CORS requests with credentials.", False)
    ssl_keyfile: str | None = setting("TLS private key file.")
    ssl_certfile: str | None = setting("TLS certificate file.")
    ssl_ca_certs: str | None = setting(
        "File of certificate authorities; clients must present a certificate of one of them."
    )
    max_body_bytes: int = setting("Maximum size of a request body in bytes, after decompression.", 32 << 20)
    max_json_values: int = setting(
        "Maximum number of values in a JSON body; at most an eighth of them may be lists, objects or object members.",
        1 << 19,
    )
    max_text_chars: int = setting("Maximum length of a text to tokenize, in characters.", 4 << 20)
    max_response_bytes: int = setting(
        "Maximum size in bytes of a response that is not streamed, estimated in advance from its number of tokens and "
        "log-probabilities.",
        32 << 20,
    )
    max_connections: int = setting(
        "Maximum number of open connections. When it is reached, a new connection replaces an idle one, or gets status "
        "503 if none is idle.",
        4096,
    )
    max_connections_per_address: int = setting(
        "Maximum number of open connections per client address; 0: no limit. Keep 0 behind a proxy.", 0
    )
    max_header_bytes: int = setting("Maximum size in bytes of the request line and headers.", 64 << 10)
    max_headers: int = setting("Maximum number of headers of a request.", 100)
    header_timeout_s: float = setting(
        "Maximum time in seconds from the first byte of a request to the end of its headers.", 20.0
    )
    body_timeout_s: float = setting(
        "Maximum pause in seconds while a request body is received; the body must also arrive at 1 KB/s or more.", 30.0
    )
    keep_alive_timeout_s: float = setting("Time in seconds for which an idle connection stays open.", 75.0)
    max_pooling_inputs: int = setting(
        "Maximum number of texts, documents or pairs in a request for embeddings, classes or scores.", 2048
    )
    trust_request_chat_template: bool = setting("Accept a chat template in requests.", False)
    template_timeout_s: float = setting("Maximum time in seconds to render a chat template.", 5.0)
    enable_request_id_headers: bool = setting(
        "Send an X-Request-Id header in responses: that of the request, or a new one.", False
    )
    enable_prompt_tokens_details: bool = setting(
        "Report the numbers of cached tokens and media tokens in `usage`.", False
    )
    enable_force_include_usage: bool = setting(
        "Send `usage` at the end of every stream, even if the request does not ask for it.", False
    )
    stream_interval: int = setting(
        "Send the tokens of a stream in groups of this many; the first and the last tokens are sent at once.", 1
    )
    ui: bool = setting("Serve the web page at /, if the plugin page is loaded.", True)
    disable_fastapi_docs: bool = setting("Disable /docs, /redoc and /openapi.json.", False)
    enable_tokenizer_info_endpoint: bool = setting(
        "Enable GET /tokenizer_info, which returns the chat template and the special tokens.", True
    )
    metrics_prefix: str = setting("Prefix of metric names; use vllm: for dashboards made for vLLM.", "quire:")
    metrics_max_tenants: int = setting(
        "Number of tenants with metrics of usage of their own; further ones are counted as other.", 20
    )
    usage_db: str | None = setting(
        "SQLite file in which the usage of ended requests and the audit log are stored (default: none)."
    )
    usage_days: int = setting("Days for which usage is stored by request; older usage is summed by day.", 30)
    usage_max_rows: int = setting(
        "Maximum number of requests in --usage-db; beyond it the oldest are summed.", 1_000_000
    )
    audit_log: str | None = setting(
        "File to which an object of JSON is appended for each change of the server, beside the log (default: none)."
    )
    disable_access_log: bool = setting("Do not log each request.", False, also=("disable_uvicorn_access_log",))
    disable_log_stats: bool = setting("Do not log the throughput of each model every ten seconds.", False)
    log_level: str = setting(
        "Minimum level of log messages.",
        "info",
        choices=("debug", "info", "warning", "error", "critical"),
        also=("uvicorn_log_level",),
    )
    log_format: str = setting(
        "Format of log lines; json: an object a line, with the request's id where there is one.",
        "text",
        choices=("text", "json"),
    )
    otlp_traces_endpoint: str | None = setting(
        "URL of an OpenTelemetry collector to which traces of requests are sent, e.g. http://localhost:4318/v1/traces; "
        "needs the extra otel (default: that of the OTEL_EXPORTER_OTLP_… variables, else no traces)."
    )
    shutdown_timeout_s: float = setting(
        "Maximum time in seconds that running requests get to finish at shutdown.", 30.0, also=("shutdown_timeout",)
    )
    engine_timeout_s: float = setting(
        "Restart the engine process if it has work but finishes no step for this many seconds.", 300.0
    )
    max_restarts: int = setting(
        "Maximum number of restarts of the engine process in ten minutes; then the server exits with status 1.",
        5,
    )
    data_parallel_size: int = setting(
        "Number of engine processes, each with every model, that share the requests and the machine's cores, memory "
        "and GPUs.",
        1,
        also=("-dp",),
    )
    data_parallel_routing: str = setting(
        "How the engine process of a request is chosen: by the prefixes and adapters that each has, while its load is "
        "bounded (prefix), in turn (round-robin), by load alone (least-loaded), or by a policy of a plugin.",
        "prefix",
    )
    kv_events_config: Mapping[str, Any] = setting(
        'Publish what changes in the prefix cache, for routers outside: {"enable_kv_cache_events": true, "endpoint": '
        '"tcp://*:5557"} (see docs/scale/kv_events.md; default: off).',
        {},
    )
    memory_budget: int | None = setting(
        "Maximum number of bytes of memory of the server's processes, all models together, e.g. 8G (default: what is "
        "free at the start; on a GPU, the memory that --gpu-memory-utilization allows)."
    )
    max_model_waiters: int = setting(
        "Maximum number of requests that wait for models to be loaded; further ones get status 503.", 256
    )
    model_wait_timeout_s: float = setting(
        "Maximum time in seconds that a request waits for its model to be loaded; then it gets status 503.", 300.0
    )
    plugin_max_faults: int = setting(
        "Switch a plugin function off for a minute after this many errors in a row; 0: never.", 100
    )
    gate_timeout_s: float = setting(
        "Maximum time in seconds that the request gates of plugins may take for a request.", 10.0
    )
    gate_threads: int = setting("Number of threads for the request gates of plugins.", 16)
    lora_modules: tuple[str, ...] = setting(
        'Adapters to load at startup: name=folder, or JSON: {"name": …, "path": …, "base_model_name": …}.', ()
    )
    lora_root: tuple[str, ...] = setting(
        "Folders from which requests may load adapters by path (default: any folder if the server listens on a "
        "loopback address or --admin-api-key is set, else none).",
        (),
    )
    model_root: tuple[str, ...] = setting(
        "Folders from which requests may load models; then hub ids are refused (default: any folder and hub id if the "
        "server listens on a loopback address or --admin-api-key is set, else none).",
        (),
    )
    lora_cache_dir: str | None = setting(
        "Folder for adapters that plugins download (default: ~/.cache/quire/adapters)."
    )
    enable_auto_tool_choice: bool = setting(
        "Let the model decide whether to call tools (default: off; on for the demos when no model is given).", False
    )
    tool_call_parser: str | None = setting("Tool-call format (default: detected from the chat template).")
    exclude_tools_when_tool_choice_none: bool = setting(
        "Omit the tools from the prompt when tool_choice is none.", False
    )
    reasoning_parser: str | None = setting(
        "Reasoning format; reasoning is then returned separately from the content; auto: detected from the chat "
        "template (default: none)."
    )

    @cached_property
    def caches_are_apart(self) -> bool:
        """Whether each client has its own prefix cache."""
        has_several_keys = len({*self.api_key, *self.admin_api_key}) > 1 if self.api_key else False
        return self.prefix_cache_scope == "client" or (self.prefix_cache_scope == "auto" and has_several_keys)

    @property
    def adapter_roots(self) -> tuple[str, ...] | None:
        """Folders from which requests may load adapters by path; None: any folder."""
        return None if self._trusts_requests and not self.lora_root else self.lora_root

    @property
    def model_roots(self) -> tuple[str, ...] | None:
        """Folders from which requests may load models; None: any folder, and hub ids."""
        return None if self._trusts_requests and not self.model_root else self.model_root

    @property
    def _trusts_requests(self) -> bool:
        return is_loopback(self.host) or bool(self.admin_api_key)

    def __post_init__(self) -> None:
        check_choices(self)
        self._check_replicas()
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be from 0 to 65535; got {self.port}.")
        check_positive(self, "max_body_bytes", "template_timeout_s", "stream_interval", "max_pooling_inputs")
        check_positive(self, "max_json_values", "max_text_chars", "max_response_bytes", "max_connections")
        check_positive(self, "max_header_bytes", "max_headers")
        check_positive(self, "header_timeout_s", "body_timeout_s", "keep_alive_timeout_s")
        if self.max_pooling_inputs > MAX_POOLING_INPUTS:
            raise ConfigError(
                f"--max-pooling-inputs must be at most {MAX_POOLING_INPUTS}; got {self.max_pooling_inputs}."
            )
        for name in ("max_connections_per_address", "max_restarts", "plugin_max_faults", "metrics_max_tenants"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 0; got {value}.")
        check_positive(self, "engine_timeout_s", "memory_budget", "max_model_waiters", "model_wait_timeout_s")
        check_positive(self, "usage_days", "usage_max_rows")
        if not 0 <= self.shutdown_timeout_s < float("inf"):
            raise ConfigError(f"--shutdown-timeout-s must be at least 0; got {self.shutdown_timeout_s}.")
        if self.metrics_require_key and not self.api_key:
            raise ConfigError("--metrics-require-key needs --api-key.")
        check_positive(self, "gate_timeout_s", "gate_threads")
        if not re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?", self.metrics_prefix):
            raise ConfigError(
                f"--metrics-prefix may contain letters, digits, _ and :, no digit first; got {self.metrics_prefix!r}."
            )
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("--ssl-keyfile and --ssl-certfile must be given together.")

    def _check_replicas(self) -> None:
        if not 1 <= self.data_parallel_size <= MAX_REPLICAS:
            raise ConfigError(f"--data-parallel-size must be from 1 to {MAX_REPLICAS}; got {self.data_parallel_size}.")
