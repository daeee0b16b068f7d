"""A hybrid of gated delta nets and attention beside transformers: one stream, and a prompt of 1500 tokens.

    python tests/benchmarks/hybrid_speed.py [--folder build/hybrid] [--turns 5] [--tokens 64]

Makes a Qwen3.5-like model of 0.4 B parameters with random bfloat16 weights, unless the folder has it. In alternating
turns: the read bandwidth of the moment, tokens per second of one stream, and seconds for a prompt, here and with
transformers. The bounds are 0.8 of the bandwidth for the bytes that a token reads, and half of transformers' seconds.
Exit status 1 if a median misses its bound.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

READ_BOUND, PROMPT_BOUND = 0.8, 2.0
PROMPT, FEW, VOCAB = 1500, 64, 65_536
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 20,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}


def make_model(folder: Path) -> None:
    """Write the model with random weights, unless it exists."""
    if (folder / "config.json").exists():
        return
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from quire_testing import byte_tokenizer

    torch.manual_seed(0)
    Qwen3_5ForCausalLM._from_config(Qwen3_5TextConfig(**CONFIG), dtype=torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder)


def bandwidth() -> float:
    """Bytes per second of the best of six reductions of 1 GiB."""
    numbers, seconds = torch.ones(256 * 2**20), []
    for _ in range(6):
        begin = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - begin)
    return numbers.nbytes / min(seconds)


class Ours:
    """Quire on the folder."""

    def __init__(self, folder: Path) -> None:
        from quire import LLM

        self._llm = LLM(model=str(folder), max_model_len=2048, enable_prefix_caching=False, max_num_batched_tokens=2048)

    def seconds(self, prompt: list[int], tokens: int) -> float:
        """Time for `tokens` greedy tokens after a prompt."""
        from quire import SamplingParams

        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        begin = time.perf_counter()
        [output] = self._llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == tokens
        return time.perf_counter() - begin


class Theirs:
    """The same model in transformers."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.token_bytes = sum(p.nbytes for p in {id(p): p for p in self._model.parameters()}.values())

    @torch.inference_mode()
    def seconds(self, prompt: list[int], tokens: int) -> float:
        """Time for `tokens` greedy tokens after a prompt."""
        ids = torch.tensor([prompt])
        begin = time.perf_counter()
        found = self._model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        assert found.shape[1] == len(prompt) + tokens
        return time.perf_counter() - begin


def measure(folder: Path, turns: int, tokens: int) -> dict[str, list[float]]:
    """Figures of each turn, by name."""
    ours, theirs = Ours(folder), Theirs(folder)
    rng = random.Random(0)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for turn in range(-1, turns):  # the first turn warms up
        prompts = [[rng.randrange(10, VOCAB) for _ in range(n)] for n in (FEW, PROMPT)]
        read = bandwidth()
        figures = {}
        for name, model in (("quire", ours), ("transformers", theirs)):
            first, whole = model.seconds(prompts[0], 1), model.seconds(prompts[0], tokens + 1)
            figures[name] = (whole - first) / tokens, model.seconds(prompts[1], 1)
        if turn < 0:
            continue
        note("bandwidth, GB/s", read / 1e9)
        for name, (a_token, a_prompt) in figures.items():
            note(f"{name}, tokens/s", 1 / a_token)
            note(f"{name}, prompt, s", a_prompt)
        note("share of the bandwidth", theirs.token_bytes / figures["quire"][0] / read)
        note("prompt, times transformers", figures["transformers"][1] / figures["quire"][1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/hybrid"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    make_model(args.folder)
    medians = {name: statistics.median(v) for name, v in measure(args.folder, args.turns, args.tokens).items()}
    print(json.dumps({name: round(value, 3) for name, value in medians.items()}, indent=1))
    missed = medians["share of the bandwidth"] < READ_BOUND or medians["prompt, times transformers"] < PROMPT_BOUND
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
