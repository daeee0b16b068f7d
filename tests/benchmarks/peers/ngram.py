"""Prompt lookup here and in vLLM for CPUs, side by side: tokens per second without and with drafts, in turns.

    python tests/benchmarks/peers/ngram.py MODEL --vllm PYTHON [--turns 5] [--streams 1,8] [--drafts 5]
        [--sides quire-off,quire-ngram,quire-suffix,vllm-off,vllm-ngram]

The model has the geometry of MODEL and writes a text that it knows: after each token the next one of a cycle through
the vocabulary. Its layers compute as usual, but add nothing. A prompt holds 400 tokens of the cycle with one in ten
replaced, left out or inserted; the answer is the text without these changes, 256 tokens of it. So drafts are right up
to the next change, for every side alike, and each turn has another text, which no prefix cache has. The time of a
request for one token is subtracted. Each side is a process that stays loaded. The variable BENCHMARK_VLLM_SETTINGS may
hold JSON of further arguments of vLLM's LLM. Without VLLM_CPU_OMP_THREADS_BIND and VLLM_CPU_KVCACHE_SPACE it takes both
cores and 1 GiB; PRELOAD_LIBS are libraries that its process preloads (tcmalloc, Intel's OpenMP), parted by colons.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TEXT, ANSWER, FIRST = 400, 256, 10
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SPECULATIVE = {"off": None, "ngram": NGRAM, "suffix": {"method": "suffix"}}
VLLM_SETTINGS = "BENCHMARK_VLLM_SETTINGS"
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
LIMITS = {"dtype": "bfloat16", "max_model_len": 1024}


def cycle(vocab: int) -> list[int]:
    ids = list(range(FIRST, vocab))
    random.Random(0).shuffle(ids)
    return ids


def dialogues(ids: list[int], number: int, streams: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and the answers to them."""
    found = []
    for stream in range(streams):
        rng = random.Random(1000 * number + stream)
        begin = rng.randrange(len(ids))
        text = [ids[(begin + i) % len(ids)] for i in range(TEXT)]
        prompt = []
        for token in text:
            chance = rng.random()
            prompt += [] if chance < 0.02 else [rng.choice(ids)] if chance < 0.08 else [token]
            prompt += [rng.choice(ids)] if chance > 0.98 else []
        found.append(([*prompt, ids[begin - 1]], text[:ANSWER]))
    return found


def make_model(source: Path, folder: Path) -> None:
    """Write the model. The head's row of the next token is the embedding of this one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(source, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ids = torch.tensor(cycle(config.vocab_size))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding = model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.zero_()[ids.roll(-1)] = embedding[ids]
    model.save_pretrained(folder)
    for file in source.glob("tokenizer*"):
        shutil.copy(file, folder)


class Ours:
    """The engine of this repository."""

    def __init__(self, folder: str, speculative: dict[str, Any] | None) -> None:
        from quire import LLM

        self._llm: Any = LLM(model=folder, **LIMITS, speculative_config=speculative)

    def run(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        from quire import SamplingParams

        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=count, detokenize=False)
        given: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(each.outputs[0].token_ids) for each in self._llm.generate(given, params, use_tqdm=False)]


class Vllm:
    """Offline vLLM, in the interpreter that has it."""

    def __init__(self, folder: str, speculative: dict[str, Any] | None) -> None:
        from vllm import LLM  # type: ignore[import-not-found]

        more = json.loads(os.environ.get(VLLM_SETTINGS, "{}"))
        self._llm = LLM(folder, **LIMITS, skip_tokenizer_init=True, speculative_config=speculative, **more)

    def run(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=count, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(each.outputs[0].token_ids) for each in self._llm.generate(given, params, use_tqdm=False)]


def answer_lines(side: str, folder: str, num_drafts: int) -> None:
    """For every line with a turn and a number of streams, write the tokens per second and the tokens that are wrong."""
    kind, arm = side.split("-")
    given = SPECULATIVE[arm]
    speculative = given and {**given, "num_speculative_tokens": num_drafts}
    runner: Ours | Vllm = (Ours if kind == "quire" else Vllm)(folder, speculative)
    ids = cycle(json.loads(Path(folder, "config.json").read_text())["vocab_size"])

    def timed(number: int, streams: int, count: int) -> tuple[float, int]:
        asked = dialogues(ids, number, streams)
        begin = time.perf_counter()
        outputs = runner.run([prompt for prompt, _ in asked], count)
        seconds = time.perf_counter() - begin
        pairs = zip(outputs, asked, strict=True)
        return seconds, sum(a != b for output, (_, answer) in pairs for a, b in zip(output, answer, strict=False))

    for line in sys.stdin:
        number, streams = json.loads(line)
        whole, wrong = timed(2 * number, streams, ANSWER)
        first, _ = timed(2 * number + 1, streams, 1)
        print("RESULT", json.dumps([streams * (ANSWER - 1) / (whole - first), wrong]), flush=True)


class Process:
    """A side, seen from this process."""

    def __init__(self, name: str, python: str, folder: Path, num_drafts: int) -> None:
        command = [python, __file__, str(folder), "--side", name, "--drafts", str(num_drafts)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if name.startswith("vllm"):
            environment = {**VLLM_ENVIRONMENT, **environment, "LD_PRELOAD": os.environ.get("PRELOAD_LIBS", "")}
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, number: int, streams: int) -> tuple[float, int]:
        """Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([number, streams]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                rate, wrong = json.loads(line.removeprefix("RESULT "))
                return rate, wrong
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}")

    def end(self) -> None:
        self._process.communicate()


def compare(folder: Path, args: argparse.Namespace) -> None:
    names = args.sides.split(",")
    pythons = {name: args.vllm if name.startswith("vllm") else sys.executable for name in names}
    sides = {name: Process(name, python, folder, args.drafts) for name, python in pythons.items()}
    for streams in map(int, args.streams.split(",")):
        found: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(args.turns + 1):
            for name, side in sides.items():
                rate, wrong = side.ask(100 * streams + turn, streams)
                if turn:  # the first one was to warm up
                    found[name].append(rate)
                    print(f"turn {turn}, {streams} streams, {name}: {rate:.1f} tokens/s, {wrong} wrong", flush=True)
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        for name, rate in medians.items():
            off = medians.get(name.split("-")[0] + "-off", float("nan"))
            first = medians[names[0]]
            print(
                f"{streams} streams, {name:13}{rate:8.1f} tokens/s, {rate / off:.2f} x off, {rate / first:.2f} x first"
            )
    for side in sides.values():
        side.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder whose config.json gives the geometry, with a tokenizer")
    parser.add_argument("--vllm", help="a Python interpreter that has vLLM")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--sides")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        answer_lines(args.side, str(args.model), args.drafts)
        return
    args.sides = args.sides or "quire-off,quire-ngram,quire-suffix" + (",vllm-off,vllm-ngram" if args.vllm else "")
    with tempfile.TemporaryDirectory() as folder:
        make_model(args.model, Path(folder))
        compare(Path(folder), args)


if __name__ == "__main__":
    main()
