"""Damaged GGUF files: headers cut, flipped, spliced, and lying about counts, lengths, types and offsets.

    python tests/attack/bombs/gguf_files.py [--files 10000] [--seed 0]

Each file is parsed, its config and tokenizer are made, and all its tensors are unpacked, in child processes. Prints how
many were used and how many refused, the slowest file and the growth of memory; exit status 1 if a child dies, an error
is not a CheckpointError, a file takes more than five seconds, or memory grows by more than 200 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

from hostile_gguf import damaged, small_file

from quire.errors import CheckpointError
from quire_kernels.quantized_rows import QuantizedRows
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.file.reader import open_gguf
from quire_models.gguf.folder import folder_contents, open_tensors

BATCH = 500
SLOWEST_S = 5.0
GROWTH_MB = 200.0


def use(path: Path) -> str:
    """What came of a file: "used", "refused", or the error that must not be."""
    try:
        folder_contents(open_parts(path))
        tensors = open_tensors(open_parts(path))
        for name in tensors:
            value = tensors.read(name)
            if isinstance(value, QuantizedRows):
                value.whole()
    except CheckpointError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "used"


def batch(first: int, content: bytes, header: int) -> tuple[Counter[str], float, float]:
    """Results of `BATCH` files, seconds of the slowest, and MB by which memory grew after the first ten."""
    results: Counter[str] = Counter()
    slowest = before = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for seed in range(first, first + BATCH):
            path.write_bytes(damaged(content, header, seed))
            begin = time.perf_counter()
            result = use(path)
            slowest = max(slowest, time.perf_counter() - begin)
            results[result if result in ("used", "refused") else f"seed {seed}: {result}"] += 1
            if seed == first + 10:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return results, slowest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--files", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small_file(Path(folder) / "model.gguf")
        content = (Path(folder) / "model.gguf").read_bytes()
        header = open_gguf(Path(folder) / "model.gguf").header_bytes
    results: Counter[str] = Counter()
    slowest = growth = 0.0
    starts = range(given.seed, given.seed + given.files, BATCH)
    context = multiprocessing.get_context("spawn")
    for first in starts:
        with context.Pool(1) as pool:
            try:
                found, slow, grew = pool.apply_async(batch, (first, content, header)).get(timeout=BATCH * SLOWEST_S)
            except multiprocessing.TimeoutError:  # the pool restarts a child that died, and never answers
                found, slow, grew = Counter({f"seeds from {first}: the process died or hung": 1}), 0.0, 0.0
        results.update(found)
        slowest, growth = max(slowest, slow), max(growth, grew)
    wrong = [result for result in results if result not in ("used", "refused")]
    print(f"{results['used']} used, {results['refused']} refused, slowest {slowest:.2f} s, memory +{growth:.0f} MB")
    for result in wrong[:20]:
        print(result)
    return int(bool(wrong) or slowest > SLOWEST_S or growth > GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
