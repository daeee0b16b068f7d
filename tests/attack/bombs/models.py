"""Model folders with hostile tokenizers and numbers: each start ends with a sentence, or requests get an answer.

    python tests/attack/bombs/models.py [--cases WORD …]

Each folder is the tiny Llama of the tests after a change. Folders that are refused: the command must end with an error
status and one sentence that names the file. Tokenizers that cannot tokenize a text: the request must get a 400, and the
next request its answer. Prints attack, result, seconds, peak memory of the processes. Exit status 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

import httpx
from serving import command, serving
from tokenizer_bombs import BOUNDED, REFUSED, changed

from quire_testing.tiny import tiny_llama

FLAGS = ("--num-pages", "50")
Change = Callable[[Path], None]


def of_json(file: str, **parts: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        value = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**value, **parts}))

    return change


def of_tokenizer(what: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(changed(path.read_text(), what))

    return change


def large_tokenizer(folder: Path) -> None:
    os.truncate(folder / "tokenizer.json", 1 << 30)


def large_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100 << 20))
    os.truncate(path, 200 << 20)


def outside(target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        index = {"metadata": {}, "weight_map": {"model.norm.weight": target}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def refused() -> Iterator[tuple[str, Change]]:
    for name, (what, _) in REFUSED.items():
        yield f"tokenizer: {name}", of_tokenizer(what)
    yield "tokenizer.json of 1 GiB", large_tokenizer
    numbers: dict[str, Any] = {"num_hidden_layers": 10**9, "vocab_size": 10**12, "num_attention_heads": 0}
    numbers |= {"hidden_size": 2**31, "max_position_embeddings": 2**63, "head_dim": 10**9}
    for name, number in numbers.items():
        yield f"config: {name} {number}", of_json("config.json", **{name: number})
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16}
    factors |= {"short_factor": [1.0] * 10_000, "long_factor": [1.0] * 10_000}
    yield "config: 10 000 rotary factors", of_json("config.json", rope_parameters=factors)
    for name, number in {"temperature": 1e308, "top_p": -5, "eos_token_id": [-1]}.items():
        yield f"generation_config: {name} {number}", of_json("generation_config.json", **{name: number})
    yield "safetensors: a header of 100 MiB", large_header
    for target in ("../outside.safetensors", "/etc/passwd"):
        yield f"index: {target}", outside(target)


def starts(folder: Path) -> tuple[str, bool]:
    done = subprocess.run(
        command("serve", f"m={folder}", *FLAGS, "--port", 1), capture_output=True, text=True, timeout=120, check=False
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    said = last.replace(str(folder), "FOLDER").replace("|", "/")
    return f"{done.returncode}: {said[:130]}", done.returncode > 0 and (str(folder) in last or "config.json" in last)


def answers(folder: Path, text: str) -> tuple[str, bool]:
    with serving(f"m={folder}", *FLAGS) as server:

        def ask(prompt: Any) -> int:
            body = {"model": "m", "prompt": prompt, "max_tokens": 2}
            return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code

        found = [ask(text), ask([1, 2])]
    return f"{found[0]}, the next request {found[1]}", found == [400, 200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], help="words that the names of cases contain (default: all)")
    words, failed = parser.parse_args().cases, []

    def attack(name: str, change: Change, run: Callable[[Path], tuple[str, bool]]) -> None:
        if words and not any(word in name for word in words):
            return
        folder = Path(shutil.copytree(good, Path(root) / str(time.monotonic_ns()) / "model"))
        change(folder)
        begin = time.monotonic()
        result, holds = run(folder)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        verdict = "holds" if holds else "FAIL"
        print(f"| {name} | {result} | {time.monotonic() - begin:.1f} s | {peak} MiB | {verdict} |", flush=True)
        failed.extend([] if holds else [name])

    with tempfile.TemporaryDirectory() as root:
        good = tiny_llama(Path(root) / "good")
        print("| attack | result | after | largest process so far | verdict |\n|---|---|---|---|---|")
        for name, change in refused():
            attack(name, change, starts)
        for name, (what, text) in BOUNDED.items():
            attack(f"tokenizer: {name}", of_tokenizer(what), lambda folder, text=text: answers(folder, text))
    print(f"{len(failed)} fail: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
