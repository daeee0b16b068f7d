"""Builds the tracing of a server from --otlp-traces-endpoint and the standard OTEL_… variables.

The variables for sampling, batches, limits, resources, headers, certificates and time limits are read by OpenTelemetry
itself: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quire import __version__
from quire.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from quire.server.tracing.tracing import Tracing

log = logging.getLogger("quire.server")

SERVICE_NAME = "quire"
EXPORTERS = "opentelemetry_traces_exporter"
"""Entry-point group of the exporters that are installed."""

OTLP: Mapping[str, tuple[str, str]] = {
    "http/protobuf": ("otlp_proto_http", "opentelemetry-exporter-otlp-proto-http"),
    "grpc": ("otlp_proto_grpc", "opentelemetry-exporter-otlp-proto-grpc"),
}
"""Protocol of OTLP → name of its exporter, and the package that has it."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACES_PATH = "/v1/traces"

_SCHEMES = {"http": "http/protobuf", "https": "http/protobuf", "grpc": "grpc", "grpcs": "grpc"}


def build_tracing(endpoint: str | None, environment: Mapping[str, str]) -> Tracing | None:
    """The tracing that the settings ask for; None if they ask for none, or OTEL_SDK_DISABLED is true.

    endpoint: the value of --otlp-traces-endpoint. Raises ConfigError for settings that cannot be used, and for an
    endpoint without the extra `otel`. Variables without the extra only log a warning: they may be meant for others.
    """
    names = _exporter_names(endpoint, environment)
    if not names or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from quire.server.tracing.tracing import Tracing
    except ModuleNotFoundError as error:
        needed = "traces need the extra otel: pip install 'quire-serve[otel]'"
        if endpoint:
            raise ConfigError(f"--otlp-traces-endpoint: {needed} ({error}).") from error
        log.warning("no traces are exported, although OTEL_… variables ask for it: %s", needed)
        return None
    except ValueError as error:  # OTEL_PROPAGATORS is read when the module is imported
        raise ConfigError(f"Traces cannot be exported: {error}") from error
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        for name in names:
            provider.add_span_processor(BatchSpanProcessor(_exporter(name, endpoint, environment)))
        return Tracing(provider)
    except ValueError as error:
        raise ConfigError(f"Traces cannot be exported: {error}") from error


def _exporter_names(endpoint: str | None, environment: Mapping[str, str]) -> list[str]:
    """Names of the exporters, as in OTEL_TRACES_EXPORTER."""
    if endpoint:
        return ["otlp"]
    given = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if not given:
        return ["otlp"] if any(environment.get(name) for name in ENDPOINTS) else []
    return [name.strip() for name in given.split(",") if name.strip() not in ("", "none")]


def _exporter(name: str, endpoint: str | None, environment: Mapping[str, str]) -> Any:
    """An exporter by its name in OTEL_TRACES_EXPORTER. Raises ConfigError if it is not installed."""
    package, arguments = "", {}
    if name == "otlp":
        protocol = next(filter(None, map(environment.get, PROTOCOLS)), "http/protobuf")
        if endpoint:
            protocol, arguments["endpoint"] = _parse(endpoint, protocol)
        if protocol not in OTLP:
            raise ConfigError(f"{PROTOCOLS[0]} must be {' or '.join(OTLP)}; got {protocol!r:.40}.")
        name, package = OTLP[protocol]
    found = next(iter(metadata.entry_points(group=EXPORTERS, name=name)), None)
    if found is None:
        advice = f"; install the package {package}" if package else ""
        raise ConfigError(f"There is no exporter of traces {name!r:.40}{advice}.")
    return found.load()(**arguments)


def _parse(endpoint: str, protocol: str) -> tuple[str, str]:
    """Protocol and endpoint for an exporter. The scheme grpc: or grpcs: selects gRPC, as in vLLM's examples.

    An HTTP endpoint without a path gets /v1/traces. Raises ConfigError for anything but a URL with a host.
    """
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in _SCHEMES or not host:
        raise ConfigError(
            "--otlp-traces-endpoint must be a URL such as http://localhost:4318/v1/traces or grpc://localhost:4317;"
            f" got {endpoint!r:.200}."
        )
    if _SCHEMES[parts.scheme] == "grpc":
        return "grpc", parts._replace(scheme="https" if parts.scheme == "grpcs" else "http").geturl()
    if protocol == "http/protobuf" and parts.path in ("", "/"):
        parts = parts._replace(path=TRACES_PATH)
    return protocol, parts.geturl()


def _resource() -> Resource:
    """What the spans are about: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else the service `quire`."""
    from opentelemetry.sdk.resources import SERVICE_NAME as NAME, SERVICE_VERSION as VERSION, Resource

    found = Resource.create()
    own = dict(_own_attributes(found.attributes, NAME, VERSION))
    return found.merge(Resource(own))


def _own_attributes(given: Mapping[str, Any], name: str, version: str) -> Iterator[tuple[str, str]]:
    if str(given.get(name, "unknown_service")).startswith("unknown_service"):
        yield name, SERVICE_NAME
    if version not in given:
        yield version, __version__
