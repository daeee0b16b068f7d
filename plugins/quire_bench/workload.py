"""Requests to measure with: random token ids, lengths drawn from ranges, all from one seed."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass


def at_least(least: int) -> Callable[[str], int]:
    """Returns a parser of integers from `least` on, for flags."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return read


def positive(text: str) -> float:
    """Parses a number above 0; `inf` is allowed."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


@dataclass(frozen=True)
class Range:
    """Lengths from `low` to `high` inclusive; written `128` or `32:256`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Range:
        """Parses `N` or `LOW:HIGH`."""
        low, _, high = text.partition(":")
        try:
            span = cls(int(low), int(high or low))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is neither N nor LOW:HIGH") from error
        if not 0 < span.low <= span.high:
            raise argparse.ArgumentTypeError(f"{text!r}: lengths must be above 0, LOW at most HIGH")
        return span

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class BenchRequest:
    """One request: a prompt of random ids and the number of tokens to generate."""

    prompt: tuple[int, ...]
    output_len: int


def add_workload_flags(
    parser: argparse.ArgumentParser, *, num_prompts: int, input_len: str, output_len: str | None
) -> None:
    """Adds --num-prompts, --input-len, --output-len (unless nothing is generated), --prefix-len, --workload-seed."""
    parser.add_argument("--num-prompts", type=at_least(1), default=num_prompts, help="number of requests")
    parser.add_argument(
        "--input-len", type=Range.parse, default=Range.parse(input_len), help="number of prompt tokens, N or LOW:HIGH"
    )
    if output_len is None:
        parser.set_defaults(output_len=Range(0, 0))
    else:
        parser.add_argument(
            "--output-len",
            type=Range.parse,
            default=Range.parse(output_len),
            help="number of output tokens, N or LOW:HIGH",
        )
    parser.add_argument(
        "--prefix-len",
        type=at_least(0),
        default=0,
        help="number of tokens that all prompts have in common at the start",
    )
    parser.add_argument("--workload-seed", type=int, default=0, help="random seed for lengths and token ids")


def jobs(args: argparse.Namespace, vocab_size: int, salt: int = 0) -> list[BenchRequest]:
    """The workload of the flags. Lengths depend only on the seed, ids also on `salt`."""
    lengths, ids = random.Random(args.workload_seed), random.Random(f"{args.workload_seed}/{salt}")
    shapes = [(args.input_len.draw(lengths), args.output_len.draw(lengths)) for _ in range(args.num_prompts)]
    low, high = min(10, vocab_size - 1), vocab_size - 1
    prefix = tuple(ids.randint(low, high) for _ in range(args.prefix_len))
    return [BenchRequest(prefix + tuple(ids.randint(low, high) for _ in range(n)), m) for n, m in shapes]
