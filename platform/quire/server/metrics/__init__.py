"""Metrics of requests and engines.

`request_timers` measures each request on the event loop. `telemetry` passes ended requests and the statistics of the
engines to `metrics` (Prometheus, with `engine_metrics`, `adapter_metrics` and `histograms`), to exporters of plugins,
and to `throughput_log`.
"""
