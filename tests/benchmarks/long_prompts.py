"""Long prompts: seconds to the first token, and tokens per second after it, by the length of the prompt.

    python tests/benchmarks/long_prompts.py [--shape smol135|qwen05] [--folder build/long] [--lengths 1500,8192,32768]

Makes a model with the shape of one of the benchmark models, random bfloat16 weights and 40,960 positions, unless the
folder has it. `--engine vllm` measures vLLM with its interpreter, with the same calls. Prints a JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

POSITIONS, LARGEST_ID = 40_960, 7000
SHAPES: dict[str, dict[str, Any]] = {
    "smol135": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "qwen05": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}


def make_model(folder: Path, shape: str) -> None:
    """Write the model with random weights, unless it exists."""
    if (folder / "config.json").exists():
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from quire_testing import byte_tokenizer

    torch.manual_seed(0)
    model, config = (LlamaForCausalLM, LlamaConfig) if shape == "smol135" else (Qwen2ForCausalLM, Qwen2Config)
    made = config(**SHAPES[shape], max_position_embeddings=POSITIONS, tie_word_embeddings=True)
    model._from_config(made, dtype=torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder)


class Engine:
    """Quire or vLLM, which are called alike."""

    def __init__(self, name: str, folder: Path, settings: dict[str, Any]) -> None:
        module = __import__(name)
        self._params = module.SamplingParams
        self._llm = module.LLM(model=str(folder), dtype="bfloat16", **settings)

    def seconds(self, prompt: list[int], tokens: int) -> float:
        """Time for `tokens` greedy tokens after a prompt."""
        params = self._params(temperature=0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        begin = time.perf_counter()
        [output] = self._llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        took = time.perf_counter() - begin
        assert len(output.outputs[0].token_ids) == tokens
        return took


def measure(engine: Engine, length: int, turns: int, tokens: int) -> dict[str, float]:
    """Medians. The second answer to a prompt, whose pages are cached, shows how fast tokens follow."""
    firsts, rates = [], []
    for turn in range(turns):
        rng = random.Random(length * 1000 + turn)
        prompt = [rng.randrange(10, LARGEST_ID) for _ in range(length)]
        firsts.append(engine.seconds(prompt, 1))
        again = engine.seconds(prompt, 1)
        rates.append(tokens / (engine.seconds(prompt, tokens + 1) - again))
    return {"length": length, "first_token_s": statistics.median(firsts), "tokens_per_s": statistics.median(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smol135")
    parser.add_argument("--folder", type=Path, default=Path("build/long"))
    parser.add_argument("--lengths", default="1500,8192,32768")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16, help="after the first (default: 16)")
    parser.add_argument("--engine", choices=("quire", "vllm"), default="quire")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON of further arguments of LLM")
    args = parser.parse_args()
    make_model(args.folder / args.shape, args.shape)
    lengths = [int(length) for length in args.lengths.split(",")]
    settings = {"max_model_len": max(lengths) + args.tokens + 64, **args.settings}
    engine = Engine(args.engine, args.folder / args.shape, settings)
    engine.seconds(list(range(10, 500)), 4)
    for length in lengths:
        found = measure(engine, length, args.turns, args.tokens)
        print(
            json.dumps({"engine": args.engine, **{name: round(value, 4) for name, value in found.items()}}), flush=True
        )


if __name__ == "__main__":
    main()
