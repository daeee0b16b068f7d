"""Requests with their times of arrival: generated from a seed, or read from a JSONL file."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

from quire.errors import ConfigError
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter

BURST_EVERY_S, BURST_S, BURST_FACTOR = 60.0, 6.0, 3.0
"""Every minute begins with some seconds in which requests arrive so many times as often."""

HASHED_TOKENS = 512
"""Tokens that a hash of a trace in the format of Mooncake stands for."""

MAX_LINE_CHARS = 16 << 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, when it arrives, and how many tokens its answer has."""

    at_s: float
    request: Request
    num_generated: int


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """A generated trace. rate: requests per second on average. skew: exponent of Zipf's law, for adapters and prefixes.

    adapted: share of the requests that name an adapter; each adapter has a prefix of its own. Lengths are uniform
    between the two bounds.
    """

    num_requests: int
    rate: float
    num_adapters: int = 10_000
    num_prefixes: int = 1000
    adapted: float = 0.5
    skew: float = 1.0
    prefix_tokens: tuple[int, int] = (256, 1536)
    own_tokens: tuple[int, int] = (32, 256)
    generated_tokens: tuple[int, int] = (16, 256)
    seed: int = 0


def generated(settings: TraceSettings) -> Iterator[Arrival]:
    """The requests of a generated trace in order of arrival; the same for the same settings."""
    random = Random(settings.seed)
    adapters, prefixes = _Zipf(settings.num_adapters, settings.skew), _Zipf(settings.num_prefixes, settings.skew)
    quiet = settings.rate * BURST_EVERY_S / (BURST_EVERY_S + (BURST_FACTOR - 1) * BURST_S)
    heads: dict[int, tuple[int, ...]] = {}
    at_s = 0.0
    for number in range(settings.num_requests):
        at_s += random.expovariate(quiet * (BURST_FACTOR if at_s % BURST_EVERY_S < BURST_S else 1.0))
        adapter = adapters.draw(random) if random.random() < settings.adapted else None
        kind = -1 - adapter if adapter is not None else prefixes.draw(random)
        if kind not in heads:
            heads[kind] = (abs(kind),) * Random(kind).randint(*settings.prefix_tokens)
        own = (number,) * random.randint(*settings.own_tokens)
        name = () if adapter is None else (_used(f"adapter-{adapter}"),)
        request = _request(number, heads[kind] + own, name)
        yield Arrival(at_s, request, random.randint(*settings.generated_tokens))


class _Zipf:
    """Draws numbers below `count`; the probability of number k is proportional to 1 / (k + 1)**skew."""

    def __init__(self, count: int, skew: float) -> None:
        self._sums = list(accumulate(1 / (number + 1) ** skew for number in range(count)))

    def draw(self, random: Random) -> int:
        return bisect(self._sums, random.random() * self._sums[-1])


def from_file(file: str) -> Iterator[Arrival]:
    """The requests of a JSONL file; raises ConfigError with the line that is wrong.

    A line has `at_s`, `prompt_token_ids`, `max_tokens` and, for an adapter, `adapter`; or, as in the traces of
    Mooncake, `timestamp` in ms, `hash_ids`, `input_length` and `output_length`. Times must not go back.
    """
    last_s = 0.0
    try:
        with Path(file).open(encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_CHARS), "")):
                if not line.strip():
                    continue
                arrival = _parsed(line, number, file)
                if arrival.at_s < last_s:
                    raise _wrong(file, number, "it arrives before the request on the line above")
                last_s = arrival.at_s
                yield arrival
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace: {file} cannot be read: {error}.") from error


def _parsed(line: str, number: int, file: str) -> Arrival:
    try:
        fields: dict[str, Any] = json.loads(line)
        if "hash_ids" in fields:
            at_s, num_generated = fields["timestamp"] / 1000, fields["output_length"]
            tokens = [token for token in fields["hash_ids"] for _ in range(HASHED_TOKENS)][: fields["input_length"]]
        else:
            at_s, num_generated, tokens = fields["at_s"], fields["max_tokens"], fields["prompt_token_ids"]
        adapters = (_used(str(fields["adapter"])),) if fields.get("adapter") else ()
        if not isfinite(at_s):
            raise ValueError("it arrives at no time")
        return Arrival(float(at_s), _request(number, tuple(map(int, tokens)), adapters), int(num_generated))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise _wrong(file, number, f"{type(error).__name__}: {error}") from error


def _wrong(file: str, number: int, why: str) -> ConfigError:
    return ConfigError(f"--trace: line {number + 1} of {file} is not a request: {why}.")


def _used(name: str) -> WeightedAdapter:
    return WeightedAdapter(AdapterRef(name=name))


_GREEDY = SamplingParams(temperature=0)


def _request(number: int, token_ids: tuple[int, ...], adapters: Sequence[WeightedAdapter]) -> Request:
    return Request(id=str(number), prompt=Prompt(token_ids=token_ids), params=_GREEDY, adapters=tuple(adapters))
