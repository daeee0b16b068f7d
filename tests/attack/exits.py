"""Runs a script that uses `LLM` without closing it, many times: each run must end with status 0.

python tests/attack/exits.py --runs 200
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter

SCRIPT = """
from quire import LLM, SamplingParams
llm = LLM("demo-chat", kv_cache_memory_bytes=64 << 20)
print(llm.generate("The capital", SamplingParams(max_tokens=1), use_tqdm=False)[0].outputs[0].text)
"""


def main() -> int:
    """Print how often each exit status came; 0 if all were 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    statuses: Counter[int] = Counter()
    for _ in range(args.runs):
        run = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.DEVNULL, check=False, timeout=300)
        statuses[run.returncode] += 1
    print(f"{args.runs} runs, exit statuses: {dict(statuses)}")
    return 0 if set(statuses) == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
