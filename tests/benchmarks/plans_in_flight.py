"""What several plans in flight gain for a model in stages: 32 requests at once, as in W1 of docs/performance.md.

    python tests/benchmarks/plans_in_flight.py MODEL [--stages 2] [--turns 5] [--requests 32]

Two engines, with a plan for each stage in flight and with one, answer the same requests in turns. Prints the seconds of
each turn and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from unittest.mock import patch

from quire.engine import build
from quire.engine.engine import Engine
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request


def built(model: str, stages: int, divides: bool) -> Engine:
    """An engine in stages. divides: whether as many plans are in flight."""
    config = ModelConfig(model=model, device="cpu", pipeline_parallel_size=stages, num_pages=1024)
    found = registry.load(None)
    if divides:
        return build.build_engine(config, found, tokenizer=None)
    with patch.object(build, "num_divisions", lambda *_: 1):
        return build.build_engine(config, found, tokenizer=None)


def seconds(engine: Engine, turn: int, count: int) -> float:
    """How long an engine takes for so many requests at once."""
    rng = random.Random(turn)
    vocab = engine.info.vocab_size
    for i in range(count):
        prompt = Prompt(token_ids=tuple(rng.randrange(vocab) for _ in range(rng.randint(32, 256))))
        params = SamplingParams(temperature=0, max_tokens=rng.randint(32, 128), ignore_eos=True)
        engine.add(Request(id=f"{turn}-{i}", prompt=prompt, params=params))
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    args = parser.parse_args()
    engines = {name: built(args.model, args.stages, name == "several") for name in ("several", "one")}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(args.turns + 1):
        for name, engine in engines.items():
            took = seconds(engine, turn, args.requests)
            if turn:  # the first one warms up
                times[name].append(took)
                print(f"turn {turn}: {name} {took:.2f} s", flush=True)
    for engine in engines.values():
        engine.close()
    one, several = (statistics.median(times[name]) for name in ("one", "several"))
    print(f"medians: several {several:.2f} s, one {one:.2f} s, ratio {one / several:.2f}")


if __name__ == "__main__":
    main()
