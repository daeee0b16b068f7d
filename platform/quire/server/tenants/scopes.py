"""The scopes of keys, and the scope that each route needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GENERATE, EMBED, AUDIO, TOKENIZE, READ = "generate", "embed", "audio", "tokenize", "read"
BATCHES, MONITOR, LOAD, ADMIN = "batches", "monitor", "load", "admin"

SCOPES: Mapping[str, str] = {
    GENERATE: "generate text: completions, chat, messages, responses",
    EMBED: "embeddings, classes, scores, reranking, moderations",
    AUDIO: "transcriptions, translations, realtime",
    TOKENIZE: "tokenize, detokenize, count tokens",
    READ: "list models and adapters, version, pages of the API",
    BATCHES: "files and batches",
    MONITOR: "metrics, plugins",
    LOAD: "load and unload models and adapters",
    ADMIN: "everything: models that sleep, aliases, reload, routes without a scope of their own",
}
"""What each scope allows."""

DEFAULT_SCOPES = frozenset({GENERATE, EMBED, AUDIO, TOKENIZE, READ})
"""Scopes of a tenant that names none."""

LIMITED = frozenset({GENERATE, EMBED, AUDIO})
"""Scopes whose routes run models: limits on requests and tokens count for them."""

ROUTES: Mapping[str, str] = {
    "/v1/completions": GENERATE,
    "/v1/chat/completions": GENERATE,
    "/generate": GENERATE,
    **dict.fromkeys(("/v1/embeddings", "/v1/embed", "/v2/embed", "/pooling", "/classify"), EMBED),
    **dict.fromkeys(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"), EMBED),
    "/v1/audio": AUDIO,
    **dict.fromkeys(("/tokenize", "/detokenize", "/tokenizer_info"), TOKENIZE),
    **dict.fromkeys(("/v1/models", "/v1/adapters", "/version", "/load"), READ),
    **dict.fromkeys(("/is_sleeping", "/v1/usage"), READ),
    **dict.fromkeys(("/sleep", "/wake_up", "/v1/model_aliases", "/v1/reload", "/v1/audit"), ADMIN),
    **dict.fromkeys(("/docs", "/docs-assets", "/redoc", "/openapi.json"), READ),
    **dict.fromkeys(("/health", "/ping"), READ),
    **dict.fromkeys(("/metrics", "/plugins"), MONITOR),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_model", "/v1/unload_model"), LOAD),
}
"""The scope of the server's own routes at a path and below it."""


class RouteScopes:
    """Finds the scope that a path needs. plugins: for each plugin, the scopes of its routes by path."""

    def __init__(self, plugins: Iterable[Mapping[str, str]] = ()) -> None:
        self._scopes = dict(ROUTES)
        for scopes in plugins:
            self._scopes.update(scopes)

    def find(self, path: str) -> str | None:
        """The scope of the longest declared path that `path` is at or below; None if there is none."""
        while path:
            if path in self._scopes:
                return self._scopes[path]
            path = path.rpartition("/")[0]
        return None
