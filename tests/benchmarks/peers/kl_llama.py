"""KL divergence of GGUF files from a base file on a text, as llama-perplexity computes it.

    python tests/benchmarks/peers/kl_llama.py BASE.gguf TEXT QUANTIZED.gguf... --llama FOLDER

Prints what it says about each file. It uses as many threads as this process has cores.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

FIGURES = re.compile(r"^(?:Mean PPL\(.*|.*KLD:.*|Same top p:.*|Final estimate.*)$", re.MULTILINE)
TRIES = 3


def perplexity(command: list[str], expected: str) -> list[str]:
    """Lines of figures, among them one that contains `expected`. Raises RuntimeError if there is none.

    On a busy machine its log sometimes ends before the figures, so it is run up to three times.
    """
    for _ in range(TRIES):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = FIGURES.findall(done.stdout)
        if any(expected in line for line in lines):
            return lines
    raise RuntimeError(f"llama-perplexity ended with {done.returncode}: {done.stdout[-300:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("quantized", type=Path, nargs="+")
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama-perplexity")
    parser.add_argument("--chunks", type=int, default=40, help="windows of 512 tokens (default: 40)")
    args = parser.parse_args()
    settings = ["-f", args.text, "-c", 512, "--chunks", args.chunks, "-t", len(os.sched_getaffinity(0))]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            args.llama.absolute() / "llama-perplexity",
            *settings,
            "--kl-divergence-base",
            f"{folder}/base.kld",
            "-m",
        ]
        command = [str(part) for part in command]
        print(args.base, *perplexity([*command, str(args.base)], "Final estimate"))
        for file in args.quantized:
            print(file, *perplexity([*command, str(file), "--kl-divergence"], "Mean    KLD"), sep="\n")


if __name__ == "__main__":
    main()
