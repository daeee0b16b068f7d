"""An OpenTelemetry collector on this machine (OTLP over HTTP) that keeps the spans it gets."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = ExportTraceServiceRequest.FromString(body)
        for of_resource in message.resource_spans:
            attributes = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.server.spans.extend((attributes["service.name"], span) for span in of_scope.spans)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def trace_collector():
    """(URL, list of (service, span)); the list grows as spans arrive."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.spans = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
