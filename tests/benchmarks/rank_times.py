"""CPU time of each of two ranks for a prompt, with whole groups of query heads and with parts of them.

    python tests/benchmarks/rank_times.py MODEL [--tokens 1024] [--turns 5]

Each rank computes alone, with one thread, and adds up nothing, so that no time is spent on waiting. Prints the least of
all turns, beside that of one process, and half of one process divided by the slower rank: what waits and sums leave of
the speed of two threads is at most that.
"""

from __future__ import annotations

import argparse
import mmap
import time
from pathlib import Path

import torch

from quire.engine.loading.load import load_model
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_kernels.cpu.implementations import compiled
from quire_kernels.groups.shared_memory import SharedMemoryGroup, shared_bytes
from quire_models.sharding.model import WHOLE_MODEL, ModelShard
from quire_models.sharding.rank import Rank
from quire_models.testing import ModelDriver

CUTS = {"whole groups": True, "parts of groups": False}


def alone(index: int, whole_groups: bool) -> ModelShard:
    """What one of two ranks computes, in a group of its own."""
    memory = mmap.mmap(-1, shared_bytes(compiled(), 1, 1))
    return ModelShard(Rank(index, 2, False, whole_groups), SharedMemoryGroup(compiled(), memory, 0, 1, 1, 20.0))


@torch.inference_mode()
def measure(folder: Path, tokens: int, turns: int) -> dict[tuple[str, int], float]:
    """The least CPU seconds of each rank, by cut and number; ("one process", 0): of a model that is not divided."""
    shards = {("one process", 0): WHOLE_MODEL} | {(cut, i): alone(i, CUTS[cut]) for cut in CUTS for i in range(2)}
    config = ModelConfig(model=str(folder), device="cpu", max_model_len=2 * tokens)
    models = {name: load_model(config, registry.load(None), shard=shard) for name, shard in shards.items()}
    prompt = torch.arange(tokens).remainder(1000).tolist()
    found = dict.fromkeys(models, float("inf"))
    for turn in range(turns + 1):  # the first one, which computes everything once, is not counted
        for name, loaded in models.items():
            driver = ModelDriver(loaded.module, loaded.decoder, [prompt])
            begin = time.thread_time()
            driver.hidden([0])
            if turn:
                found[name] = min(found[name], time.thread_time() - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1024, help="(default: 1024)")
    parser.add_argument("--turns", type=int, default=5, help="(default: 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds = measure(args.model, args.tokens, args.turns)
    one = seconds["one process", 0]
    print(f"one process: {one * 1000:.0f} ms")
    for cut in CUTS:
        each = [seconds[cut, i] for i in range(2)]
        ranks = " and ".join(f"{one * 1000:.0f} ms" for one in each)
        print(f"{cut}: {ranks}; half of one process / slower rank = {one / 2 / max(each):.2f}")


if __name__ == "__main__":
    main()
