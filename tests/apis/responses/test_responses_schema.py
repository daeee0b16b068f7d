"""The OpenAPI document of the Responses API is true: every body gets a documented status, never a 5xx."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from quire_testing import check_option, check_router

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
SETTINGS = settings(
    max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
ONE = "/v1/conversations/{conversation_id}"
READ = (
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "GET /v1/responses/{response_id}/input_items",
    f"GET {ONE}",
    f"DELETE {ONE}",
    f"GET {ONE}/items",
    f"GET {ONE}/items/{{item_id}}",
    f"DELETE {ONE}/items/{{item_id}}",
)
WRITTEN = (
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/conversations",
    f"POST {ONE}",
    f"POST {ONE}/items",
)
TRIED = [(label, GenerationMode.POSITIVE) for label in (*READ, *WRITTEN)]
TRIED += [(label, GenerationMode.NEGATIVE) for label in ("POST /v1/responses", "POST /v1/conversations")]


@pytest.fixture(scope="module")
def operations(shared_rig):
    shared_rig.says("So.")
    schema = schemathesis.openapi.from_asgi("/openapi.json", shared_rig.app)
    found = {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}
    return {label: one for label, one in found.items() if label.split(" ")[1].startswith(("/v1/resp", "/v1/conv"))}


def test_every_operation_is_tried(operations):
    assert sorted(operations) == sorted((*READ, *WRITTEN))


@pytest.mark.parametrize(("label", "mode"), TRIED, ids=lambda value: getattr(value, "value", value))
def test_an_operation_keeps_to_its_schema(operations, label, mode):
    @seed(20240607)
    @SETTINGS
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def run(case):
        case.validate_response(case.call(), checks=CHECKS)

    run()


def test_the_plugin_keeps_the_rules_of_its_records():
    from quire_apis.responses import OPTIONS, quire_routers

    for record in quire_routers():
        check_router(record, ["/v1/responses/resp_none", "/v1/conversations/conv_none"])
    for option in OPTIONS:
        check_option(option)
