"""Two servers share one folder of cached KV pages under load, and one of them is killed meanwhile.

    python tests/benchmarks/services/kv_shared.py [--model FOLDER] [--seconds 40] [--clients 4] [--prompts 24]

Clients of each server ask for answers to prompts of random tokens, some far more often than others. The folder holds
about half of the prompts' pages and the servers' memory a few of them. Halfway one server is killed with SIGKILL and
started again. A server without the folder has answered each prompt before, with `--batch-invariant` as all servers:
every answer must be the same tokens. Without --model a model is made with the shape of SmolLM-135M and random weights.

Exit status 1 if an answer is wrong or missing, if a server found no page that the other one computed, or if the
folder's files are larger than they may be.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kv_restart import ask, server, settle
from long_prompts import make_model

NUM_TOKENS, LARGEST_ID = 1024, 10_000
FLAGS = ("--batch-invariant", "--enable-prompt-tokens-details", "--kv-cache-memory-bytes", "200M")


@dataclass
class Counts:
    """Answers of one server: `wrong` has other tokens than expected, `found` began with cached tokens although this
    server process had not been asked for the prompt before."""

    answers: int = 0
    wrong: int = 0
    found: int = 0
    cached_tokens: int = 0
    asked: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Work:
    """The prompts, how often each is asked for, and the tokens of its answer."""

    prompts: Sequence[list[int]]
    expected: Sequence[list[int]]

    @property
    def weights(self) -> list[float]:
        return [1 / (1 + i) for i in range(len(self.prompts))]

    def run(self, address: str, counts: Counts, seconds: float, num_clients: int, seed: int) -> None:
        """Ask for `seconds`. Raises what a request raised that failed."""
        ends_at, counting = time.monotonic() + seconds, threading.Lock()

        def client(number: int) -> None:
            draw = random.Random(f"{seed} {number}")
            while time.monotonic() < ends_at:
                (which,) = draw.choices(range(len(self.prompts)), self.weights)
                with counting:
                    is_new = not counts.asked[which]
                    counts.asked[which] += 1
                _, tokens, cached = ask(address, self.prompts[which])
                with counting:
                    counts.answers += 1
                    counts.wrong += tokens != self.expected[which]
                    counts.found += is_new and cached > 0
                    counts.cached_tokens += cached

        with ThreadPoolExecutor(num_clients) as pool:
            list(pool.map(client, range(num_clients)))


def share(model: str, folder: str, work: Work, seconds: float, num_clients: int, limit: int) -> list[Counts]:
    """What each server process answered: the one that runs on, the one that is killed, and its successor."""
    counts, flags = [Counts() for _ in range(3)], [*FLAGS, "--kv-disk-bytes", str(limit)]
    with server(model, folder, flags) as steady, ThreadPoolExecutor(1) as pool:
        beside = pool.submit(work.run, steady, counts[0], seconds, num_clients, 0)
        for number in (1, 2):
            with server(model, folder, flags) as address:
                work.run(address, counts[number], seconds / 2, num_clients, number)
        beside.result()
    return counts


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--clients", type=int, default=4, help="of each server")
    parser.add_argument("--prompts", type=int, default=24)
    args = parser.parse_args(argv)
    draw = random.Random(0)
    prompts = [[draw.randrange(100, LARGEST_ID) for _ in range(NUM_TOKENS)] for _ in range(args.prompts)]
    with tempfile.TemporaryDirectory() as root:
        model, alone, folder = args.model or f"{root}/model", f"{root}/alone", f"{root}/shared"
        make_model(Path(model), "smol135")
        with server(model, alone, list(FLAGS)) as address:
            work = Work(prompts, [ask(address, prompt)[1] for prompt in prompts])
            settle(alone)
        limit = sum(file.stat().st_size for file in Path(alone).glob("??/*")) // 2
        counts = share(model, folder, work, args.seconds, args.clients, limit)
        size = sum(file.stat().st_size for file in Path(folder).glob("??/*"))
    for name, each in zip(("that runs on", "that is killed", "started again"), counts, strict=True):
        print(
            f"server {name:14} {each.answers:5} answers, {each.wrong} wrong, {each.cached_tokens} tokens cached,",
            end="",
        )
        print(f" {each.found} of {len(each.asked)} prompts begun with pages that another process computed")
    print(f"bytes of the folder   {size} of at most {limit}")
    return int(size > limit or any(each.wrong or not each.found for each in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
