"""The bodies of all built-in routes, for the OpenAPI document."""

from __future__ import annotations

from quire.server.audio import routes as speech_routes
from quire.server.changes import routes as change_routes
from quire.server.pooling import routes as pooling_routes
from quire.server.schemas.adapters import LoadAdapterRequest, UnloadAdapterRequest
from quire.server.schemas.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)

BODIES = (
    CompletionRequest,
    ChatRequest,
    TokenizeRequest,
    DetokenizeRequest,
    GenerateRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    *change_routes.CHANGE_BODIES,
    *pooling_routes.POOLING_BODIES,
    *speech_routes.SPEECH_BODIES,
)
