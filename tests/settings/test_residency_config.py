"""Times as texts, and settings that contradict each other."""

import argparse
import math

import pytest

from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import model_config
from quire.settings.options import add_config
from quire.settings.residency_config import seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("300", 300),
        ("0", 0),
        ("5m", 300),
        ("1.5 h", 5400),
        ("90s", 90),
        ("250ms", 0.25),
        ("1d", 86400),
        ("-1", -1),
        ("Forever", -1),
    ],
)
def test_a_time_has_a_unit_or_is_in_seconds(text, value):
    assert seconds(text) == pytest.approx(value)
    assert model_config({}, {"model": "x", "keep-alive": text}).keep_alive == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "-2", "1e3", "nan", "inf", "m"])
def test_nonsense_is_no_time(text):
    with pytest.raises(ConfigError, match=r"--keep-alive: .* is not a time \(examples: 300"):
        model_config({}, {"model": "x", "keep_alive": text})


@pytest.mark.parametrize("value", [-2, math.nan, -0.5])
def test_a_negative_number_other_than_minus_one_is_refused(value):
    with pytest.raises(ConfigError, match="--keep-alive must be at least 0 seconds, or -1"):
        model_config({}, {"model": "x", "keep_alive": value})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep_alive": True}, "must be a time, such as 300, 5m or forever"),
        ({"keep_alive": [5]}, "must be a time"),
        ({"load": "later"}, "--load must be one of startup, on-demand"),
        ({"pinned": "yes"}, "--pinned must be true or false"),
        ({"pinned": True, "keep_alive": 5}, "--pinned keeps a model loaded; leave --keep-alive out"),
    ],
)
def test_values_that_cannot_be_are_refused_with_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        model_config({}, {"model": "x", **settings})


def test_flags_apply_to_every_model_and_numbers_count_as_seconds():
    parser = argparse.ArgumentParser()
    add_config(parser, ModelConfig)
    values = vars(parser.parse_args(["--load", "on-demand", "--keep-alive", "5m"]))
    first = model_config(values, {"model": "x"})
    assert (first.load, first.keep_alive_s, first.pinned) == ("on-demand", 300.0, False)
    assert model_config(values, {"model": "x", "keep_alive": 7, "load": "startup"}).keep_alive_s == 7.0
    assert model_config({}, {"model": "x"}).keep_alive_s == math.inf
