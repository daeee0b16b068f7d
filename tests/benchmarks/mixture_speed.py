"""Throughput of a mixture of experts here and in transformers, in alternating rounds; vLLM's on request.

    python tests/benchmarks/mixture_speed.py [--rounds 3] [--requests 32] [--vllm PYTHON]

The model has the geometry of a small Qwen3-MoE, 64 experts of which a token uses 8, with random bfloat16 weights: about
0.3 billion active parameters of 1.7 billion. The load is that many requests at once, with prompts and answers of 64 to
256 tokens, greedy. Each side runs in a process of its own. Prints output tokens per second of every round, the medians
and their ratios. --vllm: a Python interpreter that has vLLM for CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
SHORTEST, LONGEST = 64, 256
Request = tuple[list[int], int]


def make_model(folder: Path) -> None:
    """Write the random model, with a tokenizer of bytes."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from quire_testing.tiny import byte_tokenizer

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM._from_config(Qwen3MoeConfig(**SIZES), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    byte_tokenizer(folder)


def requests(count: int, number: int) -> list[Request]:
    """Prompts and lengths of answers; the lengths are those of every round, the tokens are not."""
    lengths, tokens = random.Random(0), random.Random(number)
    made = []
    for _ in range(count):
        prompt, answer = lengths.randint(SHORTEST, LONGEST), lengths.randint(SHORTEST, LONGEST)
        made.append(([tokens.randrange(10, 30_000) for _ in range(prompt)], answer))
    return made


class Ours:
    """The engine of this repository, in this process."""

    def __init__(self, folder: str) -> None:
        from quire import LLM

        self._llm = LLM(model=folder, dtype="bfloat16", max_model_len=1024)

    def run(self, load: list[Request]) -> None:
        from quire import SamplingParams

        settings = [
            SamplingParams(temperature=0, ignore_eos=True, max_tokens=answer, detokenize=False) for _, answer in load
        ]
        prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt, _ in load]
        made = self._llm.generate(prompts, settings, use_tqdm=False)
        assert [len(each.outputs[0].token_ids) for each in made] == [answer for _, answer in load]


class Transformers:
    """`generate` with a batch padded on the left; rows that are done wait for the longest."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(os.cpu_count() or 1)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def run(self, load: list[Request]) -> None:
        import torch

        longest = max(len(prompt) for prompt, _ in load)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in load])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in load])
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max(answer for _, answer in load),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )


class Vllm:
    """Offline vLLM, in the interpreter that has it."""

    def __init__(self, folder: str) -> None:
        from vllm import LLM  # type: ignore[import-not-found]

        self._llm = LLM(folder, dtype="bfloat16", max_model_len=1024, skip_tokenizer_init=True)

    def run(self, load: list[Request]) -> None:
        from vllm import SamplingParams

        settings = [
            SamplingParams(temperature=0, ignore_eos=True, max_tokens=answer, detokenize=False) for _, answer in load
        ]
        self._llm.generate([{"prompt_token_ids": prompt} for prompt, _ in load], settings, use_tqdm=False)


SIDES: dict[str, Any] = {"ours": Ours, "transformers": Transformers, "vllm": Vllm}


def answer_lines(side: str, folder: str) -> None:
    """A side's process: for every line with a number of requests and of a round, write the seconds that it took."""
    runner = SIDES[side](folder)
    for line in sys.stdin:
        count, number = json.loads(line)
        load = requests(count, number)
        begin = time.perf_counter()
        runner.run(load)
        print("seconds", time.perf_counter() - begin, flush=True)


class Side:
    """A side's process, seen from this one."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        command = [python, __file__, "--side", name, "--folder", str(folder)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self, count: int, number: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([count, number]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit("a side's process ended early")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(folder: Path, arguments: argparse.Namespace) -> None:
    """Alternate the sides, and print what each made."""
    count = arguments.requests
    pythons = {"ours": sys.executable, "transformers": sys.executable}
    pythons |= {"vllm": arguments.vllm} if arguments.vllm else {}
    if arguments.no_transformers:
        del pythons["transformers"]
    sides = {name: Side(name, python, folder) for name, python in pythons.items()}
    tokens = sum(answer for _, answer in requests(count, 0))
    for name, side in sides.items():
        print(f"{name}: first round {side.seconds(2, 1000):.1f} s", flush=True)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1, arguments.rounds + 1):
        for name, side in sides.items():
            found[name].append(tokens / side.seconds(count, number))
            print(f"round {number}, {name}: {found[name][-1]:.1f} tokens/s", flush=True)
    for side in sides.values():
        side.end()
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, median in medians.items():
        print(f"{name}: median {median:.1f} tokens/s; ours is {medians['ours'] / median:.2f} times that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--vllm", help="a Python interpreter that has vLLM")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out, which takes minutes")
    parser.add_argument("--folder", type=Path, help="where the model is, or will be written")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        return answer_lines(arguments.side, str(arguments.folder))
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "config.json").exists():
            make_model(folder)
        compare(folder, arguments)


if __name__ == "__main__":
    main()
