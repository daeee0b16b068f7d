"""A shared prefix on a hybrid and on a model of attention only that does the same work.

    python tests/benchmarks/hybrid_prefix.py [--folder build/hybrid] [--turns 5]

The hybrid is the model of hybrid_speed.py. The other has as many layers and reads as many bytes for a token: its
blocks have attention alone, and wider MLPs. The load (W4) is 16 requests at once, whose prompts are a prefix of 768
tokens that they share and 32 tokens of their own, with answers of 32 tokens; each turn has a new prefix. Prints seconds
of both, the share of prompt tokens that came from the prefix cache, and the ratio, whose bound is 1.3. Exit status 1
beyond it.
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
from hybrid_speed import CONFIG, VOCAB, make_model

BOUND = 1.3
REQUESTS, SHARED, OWN, ANSWER = 16, 768, 32, 32
ATTENTION_ONLY = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 4608,
}


def make_attention_only(folder: Path) -> None:
    """Write a Qwen3 of random weights with the hybrid's width and depth, unless it exists."""
    if (folder / "config.json").exists():
        return
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from quire_testing import byte_tokenizer

    torch.manual_seed(0)
    same = {name: value for name, value in CONFIG.items() if not name.startswith("linear_")}
    Qwen3ForCausalLM._from_config(Qwen3Config(**same | ATTENTION_ONLY), dtype=torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder)


def prompts(turn: int) -> list[list[int]]:
    """The prompts of a turn, token ids."""
    draw = random.Random(turn)
    prefix = draw.choices(range(10, VOCAB), k=SHARED)
    return [prefix + draw.choices(range(10, VOCAB), k=OWN) for _ in range(REQUESTS)]


def measured(llm: Any, turn: int) -> tuple[float, float]:
    """Seconds for the load, and the share of prompt tokens that the prefix cache had."""
    from quire import SamplingParams

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=ANSWER, detokenize=False)
    begin = time.perf_counter()
    found = llm.generate([{"prompt_token_ids": ids} for ids in prompts(turn)], params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return seconds, sum(one.num_cached_tokens for one in found) / (REQUESTS * (SHARED + OWN))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/hybrid"))
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    from quire import LLM

    folders = {"hybrid": args.folder, "attention only": args.folder.with_name(f"{args.folder.name}-attention")}
    make_model(folders["hybrid"])
    make_attention_only(folders["attention only"])
    models = {name: LLM(model=str(folder), max_model_len=2048) for name, folder in folders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    shares: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(-1, args.turns):  # the first turn warms up
        for name, llm in models.items():
            taken, share = measured(llm, turn)
            if turn >= 0:
                seconds[name].append(taken)
                shares[name].append(share)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["hybrid"] / medians["attention only"]
    cached = {name: round(statistics.median(values), 3) for name, values in shares.items()}
    rounded = {name: round(value, 3) for name, value in medians.items()}
    print(json.dumps({"seconds": rounded, "share from the cache": cached, "ratio": round(ratio, 3)}, indent=1))
    return int(ratio > BOUND)


if __name__ == "__main__":
    sys.exit(main())
