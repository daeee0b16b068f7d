"""Everything that needs a GPU, in one command, with the results as JSON.

python tests/gpu/run.py --out result.json [--quick] [--device cpu] [--parts ops+parity+adapters,bench,...]
python tests/gpu/render.py result.json writes the tables of docs/scale/gpu.md.

It needs no installed distribution: packages and plugins are those of this source tree. Each part runs in a process of
its own, so that a fault on the device ends only that part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bundled_plugins import use_source_tree

PARITY_PROCESSES = 12
KINDS = ("fp8", "int8")
"""Quantizations at loading that `quantized` measures."""

BACKENDS = ("triton", "torch", "xformers", "flashinfer", "flash-attn")
PARTS = ("machine", "bench", "ops+parity+adapters+backends", "transformers", "times")
"""Parts by default, side by side where nothing is timed; `profile`, `quantized` and `tune` are others."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("gpu-result.json"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="fewer models and sizes")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: " + ", ".join(PARTS))
    parser.add_argument(
        "--sizes", default="8B,1B", help="models to measure, on a GPU; transformers only with the first"
    )
    parser.add_argument("--seconds", type=float, default=560, help="time for everything; what takes longer is stopped")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        use_source_tree()
        _save(options, _run_part(options.part, options))
        return 0
    return _run_all(options)


def _run_all(options: argparse.Namespace) -> int:
    end, results = time.monotonic() + options.seconds, dict[str, Any]()
    for parts in options.parts.split(","):
        start = time.monotonic()
        running = {part: [_started(piece, options) for piece in _pieces(part)] for part in parts.split("+")}
        for part, processes in running.items():
            found = [_finished(process, end) for process in processes]
            results[part] = {name: value for each in found for name, value in each.items()}
            results[part]["seconds"] = time.monotonic() - start
            options.out.write_text(json.dumps(results, indent=1))
            print(f"{part}: {results[part]['seconds']:.0f} s", flush=True)
    print(summary(results))
    return 0


def _pieces(part: str) -> list[str]:
    """The processes of a part."""
    count = {"parity": PARITY_PROCESSES, "backends": len(BACKENDS)}.get(part)
    return [part] if count is None else [f"{part}:{i}" for i in range(count)]


def _started(piece: str, options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], Path]:
    out = options.out.with_suffix(f".{piece.replace(':', '-')}.json")
    command = [
        sys.executable,
        __file__,
        "--part",
        piece,
        "--out",
        str(out),
        "--device",
        options.device,
        "--sizes",
        options.sizes,
    ]
    command += ["--quick"] if options.quick else []
    return subprocess.Popen(command, stdout=sys.stdout, stderr=out.with_suffix(".txt").open("w")), out


def _finished(started: tuple[subprocess.Popen[bytes], Path], end: float) -> dict[str, Any]:
    process, out = started
    failed: Any = None
    try:
        process.wait(max(5.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        failed = "out of time"
    log = out.with_suffix(".txt")
    printed = log.read_text()[-3000:]
    log.unlink()
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    out.unlink(missing_ok=True)
    if failed or process.returncode or not found:
        return {**found, f"failed {out.stem}": failed or process.returncode, "stderr": printed}
    return {**found, f"log {out.stem}": printed}


def _save(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Also what is found so far, in case that the part does not end."""
    written = options.out.with_suffix(".new")
    written.write_text(json.dumps(found))
    written.replace(options.out)


def _run_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    name, _, number = part.partition(":")
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": _machine,
        "ops": _ops,
        "times": _times,
        "parity": lambda: _parity(int(number), options),
        "adapters": lambda: _adapters(options),
        "backends": lambda: _backends(BACKENDS[int(number)]),
        "bench": lambda: _bench(options),
        "transformers": lambda: _transformers(options),
        "profile": lambda: _profile(options),
        "quantized": lambda: _quantized(options),
        "tune": _tune,
    }
    return runs[name]()


def _machine() -> dict[str, Any]:
    import numpy
    import torch
    import transformers

    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory": properties.total_memory, "cuda": torch.version.cuda}
    return found


def _parity(number: int, options: argparse.Namespace) -> dict[str, Any]:
    import parity
    import torch

    torch.set_num_threads(2)
    names = sorted(parity.CASES)[number::PARITY_PROCESSES]
    return parity.run(names[:2] if options.quick else names, options.device)


def _ops() -> dict[str, Any]:
    import ops_parity

    return ops_parity.run()


def _times() -> dict[str, Any]:
    import ops_timing

    return ops_timing.run()


def _adapters(options: argparse.Namespace) -> dict[str, Any]:
    import adapters

    return adapters.run(options.device)


def _backends(name: str) -> dict[str, Any]:
    import backends_parity

    return {name: backends_parity.run(name)}


def _sizes(options: argparse.Namespace) -> tuple[str, ...]:
    return ("tiny",) if options.device == "cpu" else tuple(options.sizes.split(","))


def _bench(options: argparse.Namespace) -> dict[str, Any]:
    import benchmarks

    scale, found = 16 if options.device == "cpu" else 1, dict[str, Any]()
    for size in _sizes(options):
        found[size] = dict[str, Any]()
        benchmarks.run(size, options.device, found[size], lambda: _save(options, found), scale=scale)
    return found


def _tune() -> dict[str, Any]:
    """Settings of launches that are quicker than the default ones; where Quire finds them, nothing is written."""
    from quire_kernels.triton_gpu.tuning import __main__ as tuning
    from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable

    matrices = [tuning.numbers(each) for each in tuning.MATRICES.split(",")]
    heads = tuning.AttentionHeads(*tuning.numbers(tuning.HEADS))
    found = tuning.tune(LaunchTable(), tuning.cases(matrices, heads, tuning.CODES.split(",")))
    return {"entries": found.entries}


def _quantized(options: argparse.Namespace) -> dict[str, Any]:
    import benchmarks

    scale, found = 16 if options.device == "cpu" else 1, dict[str, Any]()
    for size in _sizes(options)[:1]:
        found[size] = dict[str, Any]()
        benchmarks.run_quantized(size, options.device, found[size], lambda: _save(options, found), KINDS, scale)
    return found


def _transformers(options: argparse.Namespace) -> dict[str, Any]:
    import benchmarks

    scale, found = 16 if options.device == "cpu" else 1, dict[str, Any]()
    for size in _sizes(options)[:1]:
        found[size] = dict[str, Any]()
        benchmarks.run_transformers(size, options.device, found[size], lambda: _save(options, found), scale)
    return found


def _profile(options: argparse.Namespace) -> dict[str, Any]:
    import step_profile

    return {size: step_profile.run(size, options.device) for size in _sizes(options)[:1]}


def summary(results: dict[str, Any]) -> str:
    """What failed, and the figures, a line each."""
    lines = []
    for part, found in results.items():
        lines += [f"{part} FAILED: {found['stderr'][-1500:]}"] if "stderr" in found else []
    failed = [name for name, each in _named(results, "ops").items() if each["error"]]
    lines += [f"op {name}: {results['ops'][name]['error'].strip().splitlines()[-1]}" for name in failed]
    models = _named(results, "parity")
    for name, each in models.items():
        if not each["ok"]:
            last = each.get("error", "").strip().splitlines()[-3:]
            lines.append(f"{name}: diff {each.get('max_diff')}, tokens {each.get('tokens_agree')}, {' | '.join(last)}")
    captured = sum(bool(each.get("captured")) for each in models.values())
    lines.append(f"models: {sum(each['ok'] for each in models.values())} of {len(models)}, {captured} captured")
    lines += [f"adapters {name}: {each}" for name, each in _named(results, "adapters").items()]
    lines += [f"back end {name}: {each}" for name, each in _named(results, "backends").items()]
    for part in ("times", "bench", "quantized", "transformers", "profile"):
        for size, found in _named(results, part).items():
            lines += [f"{part} {size} {name}: {value}" for name, value in found.items() if len(str(value)) < 400]
    return "\n".join(lines)


def _named(results: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in results.get(part, {}).items() if isinstance(each, dict)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
