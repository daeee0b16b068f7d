"""The OpenAPI document is true: whatever fits it, or does not, is answered with a documented status, never a 5xx."""

import pytest
import schemathesis
from fake_client import PretendClient, info, pretend_app
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from quire.settings.server_config import ServerConfig

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
EXAMPLES, OF_ANOTHER_PATH = 12, 4
"""How many requests each operation gets, and each that is another with a second path. To make one takes 0.1 s."""
SECOND_PATHS = ("POST /v1/score", "POST /v1/rerank", "POST /v2/rerank")
SPOKEN = ("POST /v1/audio/transcriptions", "POST /v1/audio/translations")
POOLED = (
    "POST /v1/embeddings",
    "POST /v1/embed",
    "POST /v2/embed",
    "POST /pooling",
    "POST /classify",
    "POST /score",
    "POST /v1/score",
    "POST /rerank",
    "POST /v1/rerank",
    "POST /v2/rerank",
)
OPERATIONS = [
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "POST /generate",
    *POOLED,
    *SPOKEN,
    "POST /tokenize",
    "POST /detokenize",
    "GET /tokenizer_info",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /ping",
    "POST /ping",
    "GET /version",
    "GET /load",
    "GET /metrics",
    "GET /plugins",
    "GET /v1/usage",
    "GET /v1/audit",
    "GET /v1/adapters",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /v1/load_model",
    "POST /v1/unload_model",
    "POST /sleep",
    "POST /wake_up",
    "GET /is_sleeping",
    "GET /v1/model_aliases",
    "POST /v1/model_aliases",
    "DELETE /v1/model_aliases",
    "POST /v1/reload",
]
WITH_BODY = (
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /generate",
    *POOLED,
    *SPOKEN,
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /v1/load_model",
    "POST /v1/unload_model",
    "POST /v1/model_aliases",
)


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    able = info(
        tasks=("generate", "embed", "token_embed", "classify", "token_classify"),
        embedding_size=4,
        dimensions=(),
        labels=("no", "yes"),
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    config = ServerConfig(usage_db=str(folder / "usage.sqlite"))
    app = pretend_app(folder, PretendClient(able, ends_after=20), config)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    yield {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}
    app.state.service.accounting.ledger.close(10)


def test_every_operation_is_tried(operations):
    assert sorted(operations) == sorted(OPERATIONS)


TRIED = [(label, mode) for label in OPERATIONS for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
TRIED = [(label, mode) for label, mode in TRIED if mode is GenerationMode.POSITIVE or label in WITH_BODY]


@pytest.mark.parametrize(("label", "mode"), TRIED, ids=lambda value: getattr(value, "value", value))
def test_an_operation_keeps_to_its_schema(operations, label, mode):
    @seed(20240607)
    @settings(SETTINGS, max_examples=OF_ANOTHER_PATH if label in SECOND_PATHS else EXAMPLES)
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def run(case):
        answer = case.call()
        case.validate_response(answer, checks=CHECKS)

    run()
