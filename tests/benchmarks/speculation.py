"""Speculative decoding on text with repetition: tokens per second without and with drafts, in alternating turns.

    python tests/benchmarks/speculation.py MODEL [--turns 5] [--streams 1,8] [--texts edit,json,loop,unrelated]
        [--arms ngram,suffix,known,wrong] [--tokens 400] [--profile]

One engine in one process serves all arms: `off`, drafters, and `wrong`, a drafter whose drafts are never right. MODEL
may have random weights: the model computes every token, but instead of the argmax of its logits it writes a given
answer (`repeated_texts.py`), in every arm alike. `loop` is what the model itself writes. Each turn has other texts, and
a cache salt of its own, so that neither the prefix cache nor drafters know them; `known`, suffix decoding, knows the
answers of the turns before. Tokens per second are those after the first tokens of all streams. Prints medians, the
ratio to `off` with its range over turns, and what became of the drafts.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from repeated_texts import Dialogue, edits, extractions, unrelated
from speculation_rig import with_drafter
from tokenizers import Tokenizer

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.engine.memory.ledger import MemoryLedger
from quire.engine.runner import model_runner
from quire.engine.speculation.build_speculation import build_speculation
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Context, Draft, DraftQuery
from quire.settings.model_config import ModelConfig
from quire.types import Plan, Prompt, Request, StepResult

NEVER = 3
"""A token that no text has."""
TEXTS: dict[str, Callable[..., list[Dialogue]]] = {
    "edit": edits,
    "json": extractions,
    "loop": unrelated,
    "unrelated": unrelated,
}
ARMS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
    "known": {"method": "suffix", "num_speculative_tokens": 16},
    "wrong": {"method": "wrong", "num_speculative_tokens": 5},
}


DRAFTER_BYTES = 4 << 30
"""Memory that drafters believe to be free."""


class WrongDrafter:
    """Drafts the token that no text has, as often as it may."""

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        return [Draft([NEVER] * query.max_drafts) for query in queries]

    def end(self, seq_ids: Sequence[int]) -> None:
        pass


@dataclass
class Watched:
    """The speculation of an engine, and what became of its drafts.

    verified, accepted: drafts by position. num_steps: of all; num_drafted: of those with drafts. propose_s: in seconds.
    """

    speculation: Any
    verified: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    num_steps: int = 0
    num_drafted: int = 0
    propose_s: float = 0.0

    @property
    def is_used(self) -> bool:
        return bool(self.speculation.is_used)

    def add(self, request: Request) -> None:
        self.speculation.add(request)

    def propose(self, *args: Any) -> Any:
        begin = perf_counter()
        drafts = self.speculation.propose(*args)
        self.propose_s += perf_counter() - begin
        return drafts

    def observe(self, plan: Plan, result: StepResult, *seconds: float) -> None:
        self.num_steps += 1
        self.num_drafted += any(chunk.num_drafts for chunk in plan.chunks)
        for chunk in plan.chunks:
            self.verified.update(range(chunk.num_drafts))
            if chunk.seq_id in result.accepted:
                self.accepted.update(range(result.accepted[chunk.seq_id].num_drafts))
        self.speculation.observe(plan, result, *seconds)

    def summary(self) -> str:
        drafts, accepted = sum(self.verified.values()), sum(self.accepted.values())
        shares = [f"{100 * self.accepted[i] / self.verified[i]:.0f}" for i in sorted(self.verified)]
        return (
            f"{self.num_drafted} of {self.num_steps} steps with drafts, {drafts / max(1, self.num_steps):.2f} drafts a "
            f"step, {100 * accepted / max(1, drafts):.0f} % accepted; by position: {' '.join(shares)} %; "
            f"propose {1e6 * self.propose_s / max(1, self.num_steps):.0f} µs a step"
        )


@contextmanager
def writing(answers: Mapping[int, list[int]]) -> Iterator[None]:
    """The model writes the answer whose number is the request's seed; requests without one are left alone."""
    verify_argmax: Any = model_runner.verify_argmax  # type: ignore[attr-defined]

    def verify(sampler: Any, tokens: list[int], states: Sequence[Any], drafts: Sequence[Sequence[int]]) -> Any:
        written, row = list[int](), 0
        for i, state in enumerate(states):
            num_rows = 1 + (len(drafts[i]) if drafts else 0)
            answer, begin = answers.get(state.params.seed), len(state.output_ids)
            written += answer[begin : begin + num_rows] if answer else tokens[row : row + num_rows]
            row += num_rows
        return verify_argmax(sampler, written, states, drafts)

    model_runner.verify_argmax = verify  # type: ignore[attr-defined]
    try:
        yield
    finally:
        model_runner.verify_argmax = verify_argmax  # type: ignore[attr-defined]


class Bench:
    """One engine, which takes turns with the speculation of each arm."""

    def __init__(self, model: Path, arms: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        found = with_drafter(registry.load(None), WrongDrafter(), "wrong")
        config = ModelConfig(model=str(model), max_model_len=4096, served_model_name=("bench",), **settings)
        self.engine: Engine = build_engine(config, found, tokenizer=lambda: None)
        self.arms: dict[str, Any] = {"off": self.engine._speculation}
        for name, given in arms.items():
            asked = replace(config, speculative_config=given)
            budget = MemoryLedger(DRAFTER_BYTES).budget()
            built = build_speculation(asked, found, self.engine.loaded, lambda plugin: Context(), budget)
            self.arms[name] = Watched(built)
        self._numbers = count()

    def forget(self) -> None:
        """Begin to count anew."""
        for name, watched in self.arms.items():
            if isinstance(watched, Watched):
                self.arms[name] = Watched(watched.speculation)

    def turn(self, arm: str, dialogues: Sequence[Dialogue], num_tokens: int, is_given: bool) -> float:
        """Tokens per second after the first tokens of all dialogues."""
        self.engine._speculation = self.arms[arm]
        number = next(self._numbers)
        # a draft is verified behind the end of an answer too
        answers = {i: [*each.answer, *[each.answer[-1]] * 100] for i, each in enumerate(dialogues)} if is_given else {}
        lengths = [min(num_tokens, len(each.answer)) for each in dialogues]
        for i, (each, length) in enumerate(zip(dialogues, lengths, strict=True)):
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=length, seed=i)
            self.engine.add(
                Request(
                    id=f"r{number}-{i}",
                    prompt=Prompt(token_ids=tuple(each.prompt)),
                    params=params,
                    cache_salt=arm if arm == "known" else f"{number}",
                )
            )
        with writing(answers):
            return self._tokens_per_second(dialogues, lengths, is_given)

    def _tokens_per_second(self, dialogues: Sequence[Dialogue], lengths: Sequence[int], is_given: bool) -> float:
        outputs: dict[str, list[int]] = {}
        begin, num_first, end = 0.0, 0, 0.0
        while self.engine.has_work:
            for delta in self.engine.step():
                outputs.setdefault(delta.request_id, []).extend(delta.token_ids)
            if not begin and len(outputs) == len(dialogues):
                begin, num_first = perf_counter(), sum(map(len, outputs.values()))
            if not end and sum(map(len, outputs.values())) == sum(lengths):
                end = perf_counter()
        if is_given:
            written = [outputs[name] for name in sorted(outputs, key=lambda name: int(name.rsplit("-", 1)[1]))]
            assert written == [each.answer[:n] for each, n in zip(dialogues, lengths, strict=True)]
        return (sum(lengths) - num_first) / (end - begin)


def measure(bench: Bench, args: argparse.Namespace, text: str, streams: int, tokenizer: Tokenizer) -> None:
    dialogues = TEXTS[text](lambda given: tokenizer.encode(given).ids, streams * (args.turns + 1))
    arms = list(bench.arms)
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for turn in range(args.turns + 1):
        if turn == 1:  # the first one was to warm up
            bench.forget()
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            asked = dialogues[turn * streams :][:streams]
            found[arm].append(bench.turn(arm, asked, args.tokens, text != "loop"))
    off = statistics.median(found["off"][1:])
    print(f"\n{args.model.name} {text}, {streams} streams; tokens per second after the first")
    for arm, (_, *values) in found.items():
        each = [value / other for value, other in zip(values, found["off"][1:], strict=True)]
        print(
            f"  {arm:8}{statistics.median(values):9.1f} ({min(values):.1f} to {max(values):.1f})"
            f"{statistics.median(values) / off:7.3f} x off ({min(each):.2f} to {max(each):.2f})"
        )
        if isinstance(watched := bench.arms[arm], Watched):
            print(f"          {watched.summary()}", flush=True)


def profile(bench: Bench, args: argparse.Namespace, text: str, streams: int, tokenizer: Tokenizer) -> None:
    """Where the processor time of the thread of steps goes in each arm, by function."""
    dialogues = TEXTS[text](lambda given: tokenizer.encode(given).ids, streams)
    for arm in bench.arms:
        bench.turn(arm, dialogues, 32, text != "loop")
        profiler = cProfile.Profile(thread_time)  # of this thread alone, whatever else runs
        with profiler:
            bench.turn(arm, dialogues, args.tokens, text != "loop")
        print(f"\n{text}, {streams} streams, {arm}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", type=Path, help="folder of a model with a tokenizer.json")
    add("--turns", type=int, default=5)
    add("--streams", default="1,8")
    add("--texts", default="edit,json,loop,unrelated")
    add("--arms", default="ngram,suffix,known,wrong")
    add("--tokens", type=int, default=400, help="most of an answer")
    add("--speculative-config", type=json.loads, default={}, help="JSON of further settings of all arms")
    add("--settings", type=json.loads, default={}, help="JSON of settings of the model")
    add("--profile", action="store_true", help="print a profile of each arm instead")
    args = parser.parse_args()
    arms = {name: {**ARMS[name], **args.speculative_config} for name in args.arms.split(",")}
    bench = Bench(args.model, arms, args.settings)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    try:
        for text in args.texts.split(","):
            for streams in map(int, args.streams.split(",")):
                (profile if args.profile else measure)(bench, args, text, streams, tokenizer)
    finally:
        bench.engine.close()


if __name__ == "__main__":
    main()
