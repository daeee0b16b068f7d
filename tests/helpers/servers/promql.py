"""Evaluates the part of PromQL that dashboards and alert rules here use, on some scrapes of /metrics.

A vector is a map from sets of labels to values. Ranges always cover all scrapes, however long they say they are, and
rates are not extrapolated. A series of one point has none. https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]
Value = float | Vector | dict[Labels, Points]

SCRAPED = {"instance": "localhost:8000", "job": "quire"}
"""What Prometheus adds to every sample."""

TOKEN = re.compile(r'\s*(\d+(?:\.\d+)?|"[^"]*"|\[[^\]]*\]|[a-zA-Z_:][\w:]*|=~|!~|!=|==|>=|<=|[-+*/(){},=<>])')
AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
}
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else math.nan}
COMPARISONS = {">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge, "<=": operator.le}
MATCHERS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}


@dataclass(frozen=True)
class Scrapes:
    """The samples of several moments: name → labels → (time, value)."""

    series: Mapping[str, Mapping[Labels, Points]]

    @classmethod
    def from_texts(cls, texts: Sequence[tuple[float, str]]) -> Scrapes:
        """texts: (time in seconds, body of /metrics), the earliest first."""
        series: dict[str, dict[Labels, Points]] = defaultdict(lambda: defaultdict(list))
        for at_s, text in texts:
            series["up"][frozenset(SCRAPED.items())].append((at_s, 1.0))
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    series[sample.name][frozenset({**sample.labels, **SCRAPED}.items())].append((at_s, sample.value))
        return cls(series)

    def evaluate(self, query: str) -> Value:
        """The value of an expression. Raises SyntaxError for what is not known here, KeyError for unknown metrics."""
        tokens = list(_tokens(query))
        parser = _Parser(self, tokens)
        value = parser.either()
        if parser.rest:
            raise SyntaxError(f"{parser.rest[0]} is not expected in {query}")
        return value


def _tokens(query: str) -> Iterator[str]:
    at = 0
    while at < len(query.rstrip()):
        if not (match := TOKEN.match(query, at)):
            raise SyntaxError(query[at:])
        yield match[1]
        at = match.end()


class _Parser:
    def __init__(self, scrapes: Scrapes, tokens: list[str]) -> None:
        self._scrapes, self.rest = scrapes, tokens

    def _take(self, *expected: str) -> str:
        if not self.rest or (expected and self.rest[0] not in expected):
            raise SyntaxError(f"{expected} is expected at {self.rest}")
        return self.rest.pop(0)

    def _sees(self, *tokens: str) -> bool:
        return bool(self.rest) and self.rest[0] in tokens

    def either(self) -> Value:
        left = self._comparison()
        while self._sees("or"):
            self._take()
            right = self._comparison()
            left = {**right, **left}
        return left

    def _comparison(self) -> Value:
        left = self._sum()
        if not self._sees(*COMPARISONS):
            return left
        holds = COMPARISONS[self._take()]
        right = self._sum()
        return {labels: value for labels, value in left.items() if holds(value, right)}

    def _sum(self) -> Value:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Value:
        return self._chain(self._operand, "*", "/")

    def _chain(self, operand: Callable[[], Value], *signs: str) -> Value:
        left = operand()
        while self._sees(*signs):
            left = _binary(ARITHMETIC[self._take()], left, operand())
        return left

    def _operand(self) -> Value:
        if self._sees("("):
            self._take()
            value = self.either()
            self._take(")")
            return value
        word = self._take()
        if word[0].isdigit():
            return float(word)
        if word in AGGREGATIONS or word == "topk":
            return self._aggregation(word)
        if self._sees("("):
            self._take()
            value = self._function(word)
            self._take(")")
            return value
        return self._selector(word)

    def _names(self) -> list[str]:
        self._take("(")
        names = [self._take()]
        while self._sees(","):
            self._take()
            names.append(self._take())
        self._take(")")
        return names

    def _aggregation(self, word: str) -> Value:
        kept: list[str] = []
        if self._sees("by"):
            self._take()
            kept = self._names()
        self._take("(")
        if word == "topk":
            count = int(self._take())
            self._take(",")
        vector = self.either()
        self._take(")")
        assert isinstance(vector, dict)
        if word == "topk":
            return dict(sorted(vector.items(), key=lambda row: -row[1])[:count])
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in vector.items():
            groups[frozenset(pair for pair in labels if pair[0] in kept)].append(value)
        return {labels: AGGREGATIONS[word](values) for labels, values in groups.items()}

    def _function(self, word: str) -> Value:
        if word == "histogram_quantile":
            share = float(self._take())
            self._take(",")
            return _quantiles(share, self.either())
        ranges = self.either()
        assert isinstance(ranges, dict)
        return {labels: RANGES[word](points) for labels, points in ranges.items() if len(points) > 1}

    def _selector(self, name: str) -> Value:
        matchers: list[tuple[str, str, str]] = []
        if self._sees("{"):
            self._take()
            while not self._sees("}"):
                matchers.append((self._take(), self._take(*MATCHERS), self._take().strip('"')))
                if self._sees(","):
                    self._take()
            self._take("}")
        found = {
            labels: points
            for labels, points in self._scrapes.series[name].items()
            if all(MATCHERS[sign](dict(labels).get(label, ""), wanted) for label, sign, wanted in matchers)
        }
        if self.rest and self.rest[0].startswith("["):
            self._take()
            return found
        return {labels: points[-1][1] for labels, points in found.items()}


def _increase(points: Points) -> float:
    return sum(b - a if b >= a else b for (_, a), (_, b) in pairwise(points))


RANGES: Mapping[str, Callable[[Points], float]] = {
    "increase": _increase,
    "rate": lambda points: _increase(points) / (points[-1][0] - points[0][0]),
    "resets": lambda points: sum(b < a for (_, a), (_, b) in pairwise(points)),
    "min_over_time": lambda points: min(value for _, value in points),
}


def _binary(combine: Callable[[float, float], float], left: Value, right: Value) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return combine(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return {labels: combine(left[labels], right[labels]) for labels in left if labels in right}
    if isinstance(left, dict):
        return {labels: combine(value, right) for labels, value in left.items()}
    return {labels: combine(left, value) for labels, value in right.items()}


def _quantiles(share: float, buckets: Value) -> Vector:
    """The share-quantile of each histogram, linear within a bucket."""
    assert isinstance(buckets, dict)
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        histograms[frozenset(pair for pair in labels if pair[0] != "le")].append((bound, count))
    return {labels: _quantile(share, sorted(rows)) for labels, rows in histograms.items()}


def _quantile(share: float, rows: list[tuple[float, float]]) -> float:
    wanted = share * rows[-1][1]
    if not rows[-1][1]:
        return math.nan
    below, low = 0.0, 0.0
    for bound, count in rows:
        if count >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / max(count - below, 1e-12)
        below, low = count, bound
    return low
