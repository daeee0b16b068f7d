"""Edges of histogram buckets, chosen to be those of dashboards made for vLLM."""

from __future__ import annotations

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SMALL_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def token_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `longest` tokens."""
    edges: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > longest:
                return tuple(edges) or (1.0,)
            edges.append(float(digit * power))
        power *= 10
