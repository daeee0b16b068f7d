"""Everything that needs a GPU, in one command, with the results as JSON.

python tests/gpu/run.py --out result.json [--quick] [--device cpu] [--parts limits,parity,...]

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
from bundled_plugins import ROOT, use_source_tree

PARITY_PROCESSES = 5
PARTS = ("machine", "parity", "profile")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("gpu-result.json"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="fewer models and sizes")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: " + ", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=560, help="time for everything; later parts are left out")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        use_source_tree()
        options.out.write_text(json.dumps(_run_part(options.part, options)))
        return 0
    return _run_all(options)


def _run_all(options: argparse.Namespace) -> int:
    end, results = time.monotonic() + options.seconds, dict[str, Any]()
    for part in options.parts.split(","):
        start = time.monotonic()
        pieces = [f"{part}:{i}" for i in range(PARITY_PROCESSES)] if part == "parity" else [part]
        found = [_finished(process, end) for process in [_started(piece, options) for piece in pieces]]
        results[part] = {name: value for each in found for name, value in each.items()}
        results[part]["seconds"] = time.monotonic() - start
        options.out.write_text(json.dumps(results, indent=1))
        print(f"{part}: {results[part]['seconds']:.0f} s")
    print(_summary(results))
    return 0


def _started(piece: str, options: argparse.Namespace) -> tuple[subprocess.Popen[str], Path]:
    out = options.out.with_suffix(f".{piece.replace(':', '-')}.json")
    command = [sys.executable, __file__, "--part", piece, "--out", str(out), "--device", options.device]
    command += ["--quick"] if options.quick else []
    return subprocess.Popen(command, stdout=sys.stdout, stderr=subprocess.PIPE, text=True), out


def _finished(started: tuple[subprocess.Popen[str], Path], end: float) -> dict[str, Any]:
    process, out = started
    try:
        _, errors = process.communicate(timeout=max(5.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        return {"failed": "out of time", "stderr": errors[-3000:]}
    if process.returncode or not out.exists():
        return {f"failed {out.stem}": process.returncode, "stderr": errors[-3000:]}
    found: dict[str, Any] = json.loads(out.read_text())
    out.unlink()
    return found


def _run_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    name, _, number = part.partition(":")
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": _machine,
        "parity": lambda: _parity(int(number), options),
        "profile": lambda: _profile(options),
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


def _profile(options: argparse.Namespace) -> dict[str, Any]:
    import step_profile

    sizes = ("tiny",) if options.device == "cpu" else ("8B",)
    return {size: step_profile.run(size, options.device) for size in sizes}


def _summary(results: dict[str, Any]) -> str:
    lines = [f"results of {ROOT.name}"]
    for part, found in results.items():
        if "stderr" in found:
            lines.append(f"{part} FAILED: {found['stderr'][-1500:]}")
    checked = {name: each for name, each in results.get("parity", {}).items() if isinstance(each, dict)}
    for name, each in checked.items():
        if not each["ok"]:
            last = each.get("error", "").strip().splitlines()[-3:]
            lines.append(f"{name}: diff {each.get('max_diff')}, tokens {each.get('tokens_agree')}, {' | '.join(last)}")
    lines.append(f"parity: {sum(each['ok'] for each in checked.values())} of {len(checked)}")
    for size, found in results.get("profile", {}).items():
        if isinstance(found, dict):
            times = {key: value["step_ms"] for key, value in found.items() if key.endswith("rows")}
            lines.append(f"{size}: step ms {times}, limits {found['limits']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
