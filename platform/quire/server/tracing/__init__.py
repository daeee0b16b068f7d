"""OpenTelemetry traces of requests (extra `otel`), with the semantic conventions for HTTP and generative AI.

`exporting` builds a `Tracing` from the settings and the OTEL_… variables; without them nothing here is imported.
`middleware` traces HTTP requests, `request_spans` the engine requests that they make, from times that are measured
anyway. A worker thread makes these spans, and another one exports them.
"""
