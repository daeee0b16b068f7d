"""The checks of gates, routers and exporters accept correct ones, and name the fault of others."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter

from quire.records import GateRequest, MetricsExporter, RequestGate, RequestRefused, Router, RouterContext
from quire_testing import check_metrics_exporter, check_request_gate, check_router

SHORT = GateRequest(route="/v1/completions", model="m", body={"prompt": "x", "max_tokens": 2})
LONG = replace(SHORT, body={"prompt": "x" * 100})


def gate(admit: Callable[[GateRequest], Any]) -> RequestGate:
    return RequestGate("made", lambda context: SimpleNamespace(admit=admit))


def by_length(request: GateRequest) -> GateRequest | RequestRefused:
    return request if len(request.body["prompt"]) < 10 else RequestRefused("Too long.", 413)


def spoil(request: GateRequest) -> GateRequest:
    request.body["max_tokens"] = 1
    return request


def test_a_correct_gate_passes() -> None:
    check_request_gate(gate(by_length), admitted=[SHORT], refused=[LONG])
    check_request_gate(gate(lambda request: replace(request, body={**request.body, "n": 1})), admitted=[SHORT])


@pytest.mark.parametrize(
    ("admit", "sentence"),
    [
        (lambda request: None, "must return a GateRequest or a RequestRefused"),
        (lambda request: RequestRefused("No."), "must admit"),
        (lambda request: RequestRefused("No.", 200), "a status from 400 to 503"),
        (lambda request: RequestRefused(""), "a sentence for the client"),
        (lambda request: replace(request, body={"prompt": {1}}), "is not JSON"),
        (lambda request: replace(request, route="/other"), "may not change the route"),
        (spoil, "must not change the request"),
    ],
)
def test_a_faulty_gate_is_noticed(admit: Callable[[GateRequest], Any], sentence: str) -> None:
    request = replace(SHORT, body=dict(SHORT.body))
    with pytest.raises(AssertionError, match=sentence):
        check_request_gate(gate(admit), admitted=[request])
    with pytest.raises(AssertionError, match="must refuse"):
        check_request_gate(gate(lambda request: request), admitted=[SHORT], refused=[LONG])


def test_routers_mount_and_answer() -> None:
    def build(context: RouterContext) -> APIRouter:
        router = APIRouter()

        @router.get("/count")
        def count() -> dict[str, int]:
            return {"models": len(context.models()), "limit": context.options["limit"]}

        @router.get("/text")
        async def text() -> str:
            return (await context.generate("Once")).outputs[0].text

        @router.get("/broken")
        def broken() -> None:
            raise ArithmeticError

        return router

    check_router(Router("made", build), ["/count", "/text", "/absent"], options={"limit": 1})
    for wrong, paths, sentence in (
        (lambda context: None, [], "must return a fastapi.APIRouter"),
        (lambda context: APIRouter(), [], "has no routes"),
        (build, ["/broken"], "answered with 500"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            check_router(Router("made", wrong), paths, options={"limit": 1})


def test_exporters_take_any_statistics() -> None:
    def exporter(observe: Callable[[Any], Any]) -> MetricsExporter:
        return MetricsExporter("made", lambda context: SimpleNamespace(observe=observe))

    check_metrics_exporter(exporter(lambda stats: None))
    with pytest.raises(AssertionError, match="must return nothing"):
        check_metrics_exporter(exporter(lambda stats: stats.num_running))
    with pytest.raises(UnicodeEncodeError):
        check_metrics_exporter(exporter(lambda stats: stats.model.encode("ascii") and None))
