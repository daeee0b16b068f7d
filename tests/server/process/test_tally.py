"""Tallies are the histograms of prometheus_client."""

import time

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from quire.server.metrics.histograms import ModelHistogram, token_buckets


def test_a_tally_says_what_the_librarys_histogram_says(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1234.5)  # both tell when they were made
    bounds, values_seen = (0.5, 1, 2.5), (0.0, 0.5, 0.51, 1, 2, 2.5, 3, 1000)
    library, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("gap", "Help.", ["model_name"], registry=library, buckets=bounds)
    for model in ("a", "b"):
        histogram.labels(model)
    tally = ModelHistogram("gap", "Help.", bounds, ["a"])
    tally.add("b", ())
    ours.register(tally)
    assert generate_latest(ours) == generate_latest(library)
    for value in values_seen:
        histogram.labels("a").observe(value)
    tally.add("a", values_seen[:3])
    tally.add("a", values_seen[3:])
    assert generate_latest(ours) == generate_latest(library)


def test_token_buckets_are_1_2_5_up_to_the_longest():
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(1) == (1,)
