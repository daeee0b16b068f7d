"""The demo chat model with its draft model: tokens per second of one stream on held-out questions, off and on in turns.

    python tests/benchmarks/drafts/speculation_demo.py [--draft demo-chat-draft] [--lengths 3,5]
        [--questions 80] [--turns 3]
    python tests/benchmarks/drafts/speculation_demo.py --heads demo-chat-heads --lengths 3,4

The engines are in one process, with one thread by default. Each question is answered without drafts, then with each
length of drafts; the tokens after the first of each answer count. Prints tokens per second by the median and by the
fastest turn of each question, and how many drafts were accepted by position. Ends with an error if drafts change an
answer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "demo_models"))

from data.chat.conversations import held_out_questions
from transformers import AutoTokenizer

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Plan, Prompt, Request, StepResult

TARGET = Path(__file__).resolve().parents[3] / "plugins" / "quire_demos" / "demo_chat"
CLOCKS: dict[str, Callable[[], float]] = {"wall": perf_counter, "cpu": process_time}


@dataclass
class Arm:
    """An engine, what it took so far, and its steps."""

    name: str
    engine: Engine
    clock: Callable[[], float]
    tokens: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    steps: list[tuple[Plan, StepResult]] = field(default_factory=list)

    def acceptance(self) -> list[float]:
        """Shares of drafts that were accepted, by position."""
        drafted, accepted = Counter[int](), Counter[int]()
        for plan, result in self.steps:
            drafted.update(i for chunk in plan.chunks for i in range(chunk.num_drafts))
            accepted.update(i for each in result.accepted.values() for i in range(each.num_drafts))
        return [accepted[i] / drafted[i] for i in sorted(drafted)]

    def answer(self, number: int, token_ids: Sequence[int], params: SamplingParams) -> list[int]:
        """The output of a prompt; its tokens after the first, and the time that they took, are kept by `number`."""
        self.engine.add(Request(id=f"r{number}", prompt=Prompt(token_ids=tuple(token_ids)), params=params))
        found: list[int] = []
        while not found:
            found += (token for delta in self.engine.step() for token in delta.token_ids)
        first, begin = len(found), self.clock()
        while self.engine.has_work:
            found += (token for delta in self.engine.step() for token in delta.token_ids)
        self.seconds.setdefault(number, []).append(self.clock() - begin)
        self.tokens[number] = len(found) - first
        return found

    def rate(self, of: Callable[[list[float]], float]) -> float:
        """Tokens per second; `of` the times of a question over all turns."""
        return sum(self.tokens.values()) / sum(of(times) for times in self.seconds.values())


def new_arm(length: int, options: argparse.Namespace) -> Arm:
    config: dict[str, Any] = {
        "method": "medusa" if options.heads else "draft_model",
        "model": options.heads or options.draft,
        "num_speculative_tokens": length,
        "adaptive": options.adaptive,
    }
    settings = {"speculative_config": config} if length else {}
    model = ModelConfig(model=str(TARGET), device="cpu", num_pages=1024, enable_prefix_caching=False, **settings)
    arm = Arm(f"{length} drafts" if length else "off", build_engine(model, registry.load(None)), CLOCKS[options.clock])
    finish: Any = arm.engine._runner.finish

    def watched(launched: LaunchedPlan) -> StepResult:
        result: StepResult = finish(launched)
        arm.steps.append((launched.plan, result))  # counted later: it must not take time
        return result

    arm.engine._runner.finish = watched  # type: ignore[method-assign]
    return arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draft", default="demo-chat-draft", help="folder of the draft model")
    parser.add_argument("--heads", help="folder of Medusa heads, in place of a draft model")
    parser.add_argument("--lengths", default="3,5", help="numbers of drafts")
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, where other programs run")
    parser.add_argument("--adaptive", action="store_true", help="let the engine choose fewer drafts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts = [
        tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        for question in held_out_questions(options.questions, seed="drafts")
    ]
    arms = [new_arm(int(length), options) for length in ("0", *options.lengths.split(","))]
    for _ in range(options.turns):
        for number, prompt in enumerate(prompts):
            params = SamplingParams(temperature=options.temperature, seed=number, max_tokens=160)
            answers = [arm.answer(number, prompt, params) for arm in arms]
            if any(answer != answers[0] for answer in answers):
                sys.exit(f"drafts changed the answer to question {number}")
    count = sum(arms[0].tokens.values())
    print(f"{count} tokens of {len(prompts)} answers; medians, and the fastest, of {options.turns} turns")
    for arm in arms:
        rates = [(arm.rate(of), arms[0].rate(of)) for of in (statistics.median, min)]
        shares = " ".join(f"{100 * share:.0f}" for share in arm.acceptance())
        print(
            f"{arm.name:>9}: "
            + ", ".join(f"{rate:6.0f} tokens/s ({rate / off:.2f} x off)" for rate, off in rates)
            + (f", accepted by position: {shares} %" if shares else "")
        )


if __name__ == "__main__":
    main()
