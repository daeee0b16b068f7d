"""The OpenAPI document of files, batches and the page is true: every request gets a documented status, never a 5xx."""

from contextlib import asynccontextmanager

import pytest
import schemathesis
from batch_rig import registry
from fake_client import PretendClient, pretend_app
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from quire.settings.server_config import ServerConfig

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
SETTINGS = settings(
    max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
FILE, BATCH = "/v1/files/{file_id}", "/v1/batches/{batch_id}"
LABELS = (
    "POST /v1/files",
    "GET /v1/files",
    f"GET {FILE}",
    f"GET {FILE}/content",
    f"DELETE {FILE}",
    "POST /v1/batches",
    "GET /v1/batches",
    f"GET {BATCH}",
    f"POST {BATCH}/cancel",
)


@asynccontextmanager
async def no_lifespan(app):
    """Each request of schemathesis begins and ends the lifespan, and what has ended does not begin again."""
    yield


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    app = pretend_app(folder, PretendClient(reply="Hello"), ServerConfig(), registry(folder / "files"))
    app.router.lifespan_context = no_lifespan
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    found = {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}
    return {label: one for label, one in found.items() if label.split(" ")[1].startswith(("/v1/files", "/v1/batches"))}


def test_every_operation_is_tried(operations):
    assert sorted(operations) == sorted(LABELS)


TRIED = [(label, GenerationMode.POSITIVE) for label in LABELS]
TRIED += [(label, GenerationMode.NEGATIVE) for label in ("POST /v1/files", "POST /v1/batches", "GET /v1/files")]


@pytest.mark.parametrize(("label", "mode"), TRIED, ids=lambda value: getattr(value, "value", value))
def test_an_operation_keeps_to_its_schema(operations, label, mode):
    @seed(20240607)
    @SETTINGS
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def run(case):
        case.validate_response(case.call(), checks=CHECKS)

    run()
