"""Speculative decoding on text with repetition: tokens per second without and with drafts, in alternating turns.

    python tests/benchmarks/drafts/speculation.py MODEL [--turns 5] [--streams 1,8] [--texts edit,json,loop,unrelated]
        [--arms ngram,suffix,known,wrong] [--tokens 400] [--profile]

One engine in one process serves all arms: `off`, drafters, and `wrong`, a drafter whose drafts are never right. MODEL
may have random weights: the model computes every token, but instead of the argmax of its logits it writes a given
answer (`repeated_texts.py`), in every arm alike. `loop` is what the model itself writes. Each turn has other texts, and
a cache salt of its own, so that neither the prefix cache nor drafters know them; `known`, suffix decoding, knows the
answers of the turns before. Tokens per second are those after the first tokens of all streams. Prints medians, the
median of the ratios to `off` in the same turn with their quartiles, and what became of the drafts.

Where other programs run, the ratio by steps is the one to look at: each step counts as the median of the steps of its
arm with as many tokens, and the time in the drafter is added as it was. With many short turns the arms alternate often:

    python tests/benchmarks/drafts/speculation.py MODEL --texts unrelated --arms ngram,suffix,wrong --streams 1
        --tokens 64 --turns 40
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

from repeated_texts import Dialogue, edits, extractions, unrelated
from speculation_rig import with_drafter
from tokenizers import Tokenizer
from watched_steps import Step, Turn, Watched, rate_by_steps

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.engine.memory.ledger import MemoryLedger
from quire.engine.runner import model_runner
from quire.engine.speculation.build_speculation import build_speculation
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Context, Draft, DraftQuery
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request

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
        self.arms = {"off": Watched(self.engine._speculation)}
        for name, given in arms.items():
            asked = replace(config, speculative_config=given)
            budget = MemoryLedger(DRAFTER_BYTES).budget()
            built = build_speculation(asked, found, self.engine.loaded, lambda plugin: Context(), budget)
            self.arms[name] = Watched(built)
        self._numbers = count()

    def forget(self) -> None:
        """Begin to count anew."""
        for name, watched in self.arms.items():
            self.arms[name] = Watched(watched.speculation)

    def turn(self, arm: str, dialogues: Sequence[Dialogue], num_tokens: int, is_given: bool) -> Turn:
        """Answer all dialogues at once."""
        self.engine._speculation = self.arms[arm]  # type: ignore[assignment]
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
            return self._run(self.arms[arm], dialogues, lengths, is_given)

    def _run(self, watched: Watched, dialogues: Sequence[Dialogue], lengths: Sequence[int], is_given: bool) -> Turn:
        outputs: dict[str, list[int]] = {}
        steps, num_first, num_tokens = list[Step](), 0, 0
        while self.engine.has_work:
            begun, drafted = perf_counter(), watched.propose_s + watched.observe_s
            deltas = self.engine.step()
            seconds, draft_s = perf_counter() - begun, watched.propose_s + watched.observe_s - drafted
            if num_first and num_tokens < sum(lengths):
                steps.append(Step(watched.num_tokens, watched.num_drafts, seconds - draft_s, draft_s))
            for delta in deltas:
                outputs.setdefault(delta.request_id, []).extend(delta.token_ids)
            num_tokens = sum(map(len, outputs.values()))
            if not num_first and len(outputs) == len(dialogues):
                num_first = num_tokens
        if is_given:
            written = [outputs[name] for name in sorted(outputs, key=lambda name: int(name.rsplit("-", 1)[1]))]
            assert written == [each.answer[:n] for each, n in zip(dialogues, lengths, strict=True)]
        return Turn(num_tokens - num_first, sum(step.seconds + step.draft_s for step in steps), steps)


def measure(bench: Bench, args: argparse.Namespace, text: str, streams: int, tokenizer: Tokenizer) -> None:
    dialogues = TEXTS[text](lambda given: tokenizer.encode(given).ids, streams * (args.turns + 1))
    arms = list(bench.arms)
    found: dict[str, list[Turn]] = {arm: [] for arm in arms}
    for turn in range(args.turns + 1):
        if turn == 1:  # the first one was to warm up
            bench.forget()
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            asked = dialogues[turn * streams :][:streams]
            found[arm].append(bench.turn(arm, asked, args.tokens, text != "loop"))
    off = found["off"][1:]
    print(f"\n{args.model.name} {text}, {streams} streams; tokens per second after the first")
    for arm, (_, *turns) in found.items():
        rates = [turn.rate for turn in turns]
        each = sorted(rate / other.rate for rate, other in zip(rates, off, strict=True))
        low, high = each[len(each) // 4], each[3 * len(each) // 4]
        print(
            f"  {arm:8}{statistics.median(rates):9.1f} ({min(rates):.1f} to {max(rates):.1f})"
            f"{statistics.median(each):7.3f} x off ({low:.3f} to {high:.3f})"
            f"{rate_by_steps(turns) / rate_by_steps(off):7.3f} x by steps"
        )
        print(f"          {bench.arms[arm].summary()}", flush=True)


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
