"""Which settings and variables switch traces on, where they go, and what is said when that is not possible."""

import builtins
import sys
from types import SimpleNamespace

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from quire.errors import ConfigError
from quire.server.tracing import exporting
from quire.server.tracing.exporting import build_tracing

COLLECTOR = "http://127.0.0.1:9/v1/traces"


@pytest.fixture
def built(monkeypatch):
    """Exporters of a tracing that settings make. Their threads end with the test."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    made = []

    def build(endpoint=None, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        tracing = build_tracing(endpoint, environment)
        if tracing is None:
            return None
        made.append(tracing._provider)
        return [one.span_exporter for one in tracing._provider._active_span_processor._span_processors], made[-1]

    yield build
    for provider in made:
        provider.shutdown()


@pytest.mark.parametrize(
    ("endpoint", "environment"),
    [
        (None, {}),
        (None, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR}),
        (None, {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR}),
        (COLLECTOR, {"OTEL_SDK_DISABLED": "TRUE"}),
        (None, {"OTEL_SERVICE_NAME": "mine"}),
    ],
)
def test_nothing_is_traced_unless_a_setting_asks_for_it(built, endpoint, environment):
    assert built(endpoint, **environment) is None


@pytest.mark.parametrize(
    ("endpoint", "environment", "address"),
    [
        ("http://host:4318", {}, "http://host:4318/v1/traces"),
        ("https://host/", {"OTEL_TRACES_EXPORTER": "none"}, "https://host/v1/traces"),
        ("http://host:4318/my/traces", {}, "http://host:4318/my/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}, "http://host:4318/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://host/x"}, "http://host/x"),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces"),
    ],
)
def test_spans_are_sent_to_the_endpoint_of_the_flag_or_of_the_variables(built, endpoint, environment, address):
    (exporter,), _ = built(endpoint, **environment)
    assert isinstance(exporter, OTLPSpanExporter)
    assert exporter._endpoint == address


def test_the_resource_is_named_by_the_standard_variables_or_else_after_this_server(built):
    _, provider = built(COLLECTOR)
    assert provider.resource.attributes["service.name"] == "quire"
    assert provider.resource.attributes["service.version"]
    resource = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.version=7,zone=a"}
    _, provider = built(COLLECTOR, **resource)
    found = provider.resource.attributes
    assert (found["service.name"], found["service.version"], found["zone"]) == ("mine", "7", "a")


def test_sampling_and_several_exporters_are_those_of_the_variables(built):
    exporters, provider = built(
        OTEL_TRACES_EXPORTER="otlp, console", OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.25"
    )
    assert [type(one).__name__ for one in exporters] == ["OTLPSpanExporter", "ConsoleSpanExporter"]
    assert provider.sampler.rate == 0.25


@pytest.mark.parametrize(
    ("endpoint", "address"), [("grpc://host:4317", "http://host:4317"), ("grpcs://host", "https://host")]
)
def test_the_scheme_grpc_selects_the_exporter_for_grpc(built, monkeypatch, endpoint, address):
    made = []

    class Exporter(OTLPSpanExporter):
        def __init__(self, **arguments):
            super().__init__()
            made.append(arguments)

    entry = SimpleNamespace(load=lambda: Exporter)
    monkeypatch.setattr(
        exporting.metadata, "entry_points", lambda group, name: [entry] if name == "otlp_proto_grpc" else []
    )
    built(endpoint)
    built(OTEL_EXPORTER_OTLP_ENDPOINT="http://host:4317", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert made == [{"endpoint": address}, {}]


@pytest.mark.parametrize(
    ("endpoint", "environment", "said"),
    [
        ("host:4317", {}, "must be a URL such as .* got 'host:4317'"),
        ("ftp://host", {}, "must be a URL such as"),
        ("http://[bad", {}, "must be a URL such as"),
        ("http://host:99999", {}, "must be a URL such as"),
        ("grpc://host:4317", {}, "no exporter of traces 'otlp_proto_grpc'; install the package opentelemetry-exp"),
        (None, {"OTEL_TRACES_EXPORTER": "zipkin"}, r"no exporter of traces 'zipkin'\."),
        (COLLECTOR, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "must be http/protobuf or grpc; got 'http/json'"),
        (COLLECTOR, {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "Traces cannot be exported: "),
    ],
)
def test_settings_that_cannot_be_used_stop_the_start_with_a_sentence(built, endpoint, environment, said):
    with pytest.raises(ConfigError, match=said):
        built(endpoint, **environment)


def test_without_the_extra_the_flag_is_an_error_and_variables_only_a_warning(monkeypatch, caplog):
    real = builtins.__import__

    def without(name, *arguments):
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments)

    for name in [name for name in sys.modules if name.startswith("quire.server.tracing.tracing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint: traces need the extra otel: pip install"):
        build_tracing(COLLECTOR, {})
    assert build_tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR}) is None
    assert "no traces are exported, although OTEL_… variables ask for it" in caplog.text
