"""A plugin that raises in everything it brings, some of it only when a request asks for that."""

from quire.hooks.hookspecs import hookimpl
from quire.records import (
    GrammarBackend,
    LogitsProcessor,
    MetricsExporter,
    OpImpl,
    RequestGate,
    Router,
    SchedulerPolicy,
)

URGENT = -666


class Hazard(Exception):
    """What is raised."""


def burn(*args):
    raise Hazard("it burns")


class Gate:
    def __init__(self, context):
        pass

    def admit(self, request):
        word = request.headers.get("x-hazard")
        if word == "raise":
            burn()
        if word == "exit":
            raise SystemExit(3)
        return "nonsense" if word == "nonsense" else request


class Processor:
    def __init__(self, context):
        pass

    def start(self, params):
        word = params.extra.get("hazard")
        return burn() if word == "start" else word

    def apply(self, logits, rows):
        if any(row.state == "apply" and len(row.output_ids) >= 2 for row in rows):
            burn()
        if any(row.state == "shape" for row in rows):
            logits.resize_(len(rows), 5)


class Grammars:
    def __init__(self, context):
        pass

    def compile(self, asked):
        return burn() if asked.source == "compile" else Grammar(asked.source)


class Grammar:
    def __init__(self, source):
        self.source = source

    def start(self):
        return burn() if self.source == "start" else Matcher(self.source)


class Matcher:
    is_terminated = is_accepting = False

    def __init__(self, source):
        self.source = source

    def fill(self, mask):
        mask.fill_(-1)
        if self.source == "fill":
            burn()

    def accept(self, token_id):
        return burn() if self.source == "accept" else self.source != "refuse"

    def rollback(self, count):
        burn()

    def jump_forward(self):
        return burn() if self.source == "forced" else ()


class Policy:
    def __init__(self, context):
        pass

    def admit_key(self, seq):
        return burn() if seq.priority == URGENT else seq.arrival

    def victim_key(self, seq):
        burn()


class Exporter:
    def __init__(self, context):
        pass

    observe = burn


@hookimpl
def quire_request_gates():
    yield RequestGate("hazard", Gate)


@hookimpl
def quire_logits_processors():
    yield LogitsProcessor("hazard", {"hazard": str}, Processor)


@hookimpl
def quire_grammar_backends():
    yield GrammarBackend("hazard", frozenset({"regex"}), Grammars)


@hookimpl
def quire_scheduler_policies():
    yield SchedulerPolicy("hazard", Policy)


@hookimpl
def quire_metrics_exporters():
    yield MetricsExporter("hazard", Exporter)


@hookimpl
def quire_ops():
    yield OpImpl("hazard-load", "act", lambda query: None, burn, priority=100)
    yield OpImpl("hazard-supports", "act", burn, burn, priority=99)


@hookimpl
def quire_routers():
    def build(context):
        from fastapi import APIRouter

        router = APIRouter()

        @router.get("/hazard")
        def hazard():
            burn()

        return router

    yield Router("hazard", build)


@hookimpl
def quire_resolve_adapter(name):
    burn()


@hookimpl
def quire_engine_started(info):
    burn()


@hookimpl
def quire_engine_stopping(info):
    burn()


@hookimpl
def quire_request_finished(summary):
    burn()
