"""One small good request for each route of /openapi.json that takes a body, and what its fields may be."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from demos import EXAMPLES

GREEDY = {"temperature": 0, "max_tokens": 4}
HELLO = [{"role": "user", "content": "Hello!"}]
DECISIONS = {"a": {"type": "choice", "criteria": {"b": None, "c": "d"}}, "e": {"type": "score", "criteria": ["f", "g"]}}
TEXTS = ["How warm is the sea?", "A poem about rain."]
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "demo-chat", "prompt": "Once upon a time", **GREEDY},
    "/v1/chat/completions": {"model": "demo-chat", "messages": [{"role": "user", "content": "Hello!"}], **GREEDY},
    "/generate": {"model": "demo-chat", "prompt": "Once", "sampling_params": dict(GREEDY)},
    "/tokenize": {"model": "demo-chat", "prompt": "Once upon a time"},
    "/detokenize": {"model": "demo-chat", "tokens": [20, 30, 40]},
    "/v1/embeddings": {"model": "demo-embed", "input": "How warm is the sea?"},
    "/pooling": {"model": "demo-embed", "input": "How warm is the sea?"},
    "/classify": {"model": "demo-rerank", "input": "How warm is the sea?"},
    "/v1/embed": {"model": "demo-embed", "texts": TEXTS, "input_type": "search_document"},
    "/v2/embed": {"model": "demo-embed", "texts": TEXTS, "input_type": "search_document", "embedding_types": ["float"]},
    "/score": {"model": "demo-rerank", "text_1": "rain", "text_2": TEXTS},
    "/v1/score": {"model": "demo-rerank", "text_1": "rain", "text_2": TEXTS},
    "/rerank": {"model": "demo-rerank", "query": "rain", "documents": TEXTS},
    "/v1/rerank": {"model": "demo-rerank", "query": "rain", "documents": TEXTS},
    "/v2/rerank": {"model": "demo-rerank", "query": "rain", "documents": TEXTS},
    "/v1/audio/transcriptions": {"model": "demo-whisper"},
    "/v1/audio/translations": {"model": "demo-whisper"},
    "/v1/load_lora_adapter": {"lora_name": "other", "lora_path": "/nowhere"},
    "/v1/unload_lora_adapter": {"lora_name": "other"},
    "/v1/load_model": {"name": "other", "model": "/nowhere"},
    "/v1/unload_model": {"name": "other"},
    "/v1/messages": {"model": "demo-chat", "messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "demo-chat", "messages": HELLO},
    "/v1/responses": {"model": "demo-chat", "input": "Hello!", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"model": "demo-chat", "input": "Hello!"},
    "/v1/conversations": {"items": [{"type": "message", **HELLO[0]}]},
    "/v1/conversations/{conversation_id}": {"metadata": {"topic": "rain"}},
    "/v1/conversations/{conversation_id}/items": {"items": [{"type": "message", **HELLO[0]}]},
    "/v1/files": {"purpose": "user_data"},
    "/v1/batches": {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/v1/moderations": {"model": "demo-rerank", "input": "How warm is the sea?"},
    "/v1/systemone": {"model": "demo-chat", "state": "My card was charged twice.", "questions": DECISIONS},
    "/v2/chat": {"model": "demo-chat", "messages": HELLO, "max_tokens": 4},
    "/v1/tokenize": {"model": "demo-chat", "text": "Once upon a time"},
    "/v1/detokenize": {"model": "demo-chat", "tokens": [20, 30, 40]},
    "/api/chat": {"model": "demo-chat", "messages": HELLO, "stream": False, "options": {"num_predict": 4}},
    "/api/generate": {"model": "demo-chat", "prompt": "Once", "stream": False, "options": {"num_predict": 4}},
    "/api/embed": {"model": "demo-embed", "input": TEXTS},
    "/api/embeddings": {"model": "demo-embed", "prompt": TEXTS[0]},
    "/api/show": {"model": "demo-chat"},
    "/api/pull": {"model": "demo-chat", "stream": False},
}
RECORDING = (EXAMPLES / "digits.wav").read_bytes()


@dataclass(frozen=True)
class Route:
    """One that takes a body. base: a small good one. fields: name → JSON schema. is_form: with a file."""

    path: str
    base: dict[str, Any]
    fields: dict[str, Any] = field(repr=False)
    is_form: bool = False


def openapi(url: str) -> dict[str, Any]:
    """The server's description of itself."""
    with urllib.request.urlopen(f"{url}/openapi.json") as answer:
        return json.load(answer)


def routes(spec: dict[str, Any]) -> list[Route]:
    """All that take bodies; AssertionError for one that has no base here: it is new."""
    found = []
    for path, operations in spec["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        for kind, described in content.items():
            assert path in BASES, f"{path} needs a base in {__file__}"
            fields = properties(spec, described["schema"])
            found.append(Route(path, BASES[path], fields, is_form=kind.startswith("multipart")))
    return found


def properties(spec: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The fields of an object, references followed."""
    schema = resolved(spec, schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found.update(properties(spec, part))
    return found


def resolved(spec: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or what it refers to."""
    reference = schema.get("$ref")
    return spec["components"]["schemas"][reference.rsplit("/", 1)[1]] if reference else schema


def others(spec: dict[str, Any]) -> list[str]:
    """Paths to ask with GET."""
    return [path for path, operations in spec["paths"].items() if "get" in operations and "{" not in path]
