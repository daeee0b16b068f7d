"""What fits the OpenAPI document, or does not, is answered by every API with a documented status, never a 5xx."""

import pytest
import schemathesis
from api_rig import api_app
from fake_client import PretendClient, info
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
SETTINGS = settings(
    max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
POSTS = (
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/api/pull",
    "/v2/chat",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/moderations",
    "/v1/systemone",
)
GETS = ("/api/tags", "/api/ps", "/api/version", "/ui/models")


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    able = info(tasks=("generate", "embed", "classify"), embedding_size=4, dimensions=(), labels=("no", "yes"))
    plugins = ["anthropic", "ollama", "cohere", "decisions", "moderations", "page"]
    options = {"anthropic": {"fallback": "*"}}
    app = api_app(tmp_path_factory.mktemp("tokenizer"), PretendClient(able, ends_after=20), plugins, options)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


TRIED = [(f"POST {path}", mode) for path in POSTS for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
TRIED += [(f"GET {path}", GenerationMode.POSITIVE) for path in GETS]


@pytest.mark.parametrize(("label", "mode"), TRIED, ids=lambda value: getattr(value, "value", value))
def test_an_operation_of_another_api_keeps_to_its_schema(operations, label, mode):
    @seed(20240607)
    @SETTINGS
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def run(case):
        answer = case.call()
        case.validate_response(answer, checks=CHECKS)

    run()
