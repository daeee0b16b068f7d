"""Writes the results of `run.py` into docs/scale/gpu.md, between the marks of the measured tables.

python tests/gpu/render.py result.json [...]    several results of one device are joined
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- begin measured -->", "<!-- end measured -->"
PAGE = Path(__file__).parents[2] / "docs" / "scale" / "gpu.md"

Format = Callable[[dict[str, Any]], str]


def _step(found: dict[str, Any]) -> str:
    return f"{found['step_ms']:.2f} ms a step, {found['tokens_per_s']:,.0f} tokens/s"


def _share(found: dict[str, Any]) -> str:
    share = found.get("share_of_copy_bandwidth")
    return _step(found) + (f"; weights read at {share:.0%} of the rate of a copy" if share else "")


def _requests(found: dict[str, Any]) -> str:
    return f"{found['seconds']:.2f} s, {found['output_tokens_per_s']:,.0f} output tokens/s"


ROWS: dict[str, tuple[str, Format]] = {
    "one stream": ("1 stream, prompt of 128", _share),
    "64 streams": ("64 streams, prompts of 128", _step),
    "256 streams": ("256 streams, prompts of 128", _step),
    "16 streams of 3000": ("16 streams, prompts of 3000", _step),
    "256 requests": ("256 requests at once, prompts of 32 to 256, answers of 32 to 128", _requests),
    "first token of 1500": ("first token after a prompt of 1500", lambda found: f"{found['median_ms']:.1f} ms"),
    "64 streams of 64 adapters": ("64 streams, each with an adapter of its own (rank 16)", _step),
    "256 streams of 64 adapters": ("256 streams of 64 adapters (rank 16)", _step),
}


def tables(results: dict[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    yield (
        f"Run on {machine['date']}: {machine['gpu']}, CUDA {machine['cuda']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, Python {machine['python']}."
    )
    if "parity" in results or "ops" in results:
        yield from _parity(results)
    sizes = {name: found for name, found in results.get("bench", {}).items() if isinstance(found, dict)}
    if sizes:
        yield from _speed(sizes, results.get("transformers", {}))
    for name, found in sizes.items():
        for rows, profile in found.get("profiles", {}).items():
            yield (
                f"A step of {name} with {rows} row{'s' if rows != '1' else ''}: {profile['kernels_per_step']:.0f} "
                f"operations on the device, which take {profile['device_ms_per_step']:.2f} ms."
            )


def _parity(results: dict[str, Any]) -> Iterator[str]:
    models = {name: each for name, each in results.get("parity", {}).items() if isinstance(each, dict)}
    ops = {name: each for name, each in results.get("ops", {}).items() if isinstance(each, dict)}
    adapters = {name: each for name, each in results.get("adapters", {}).items() if isinstance(each, dict)}
    captured = sorted(name for name, each in models.items() if each.get("captured"))
    eager = sorted(name for name, each in models.items() if each["ok"] and name not in captured)
    wrong = sorted(name for name, each in models.items() if not each["ok"])
    yield "### Level R: the same results"
    lines = ["| what | agrees |", "|---|---|"]
    lines.append(f"| checks of ops against the reference | {_passed(ops, lambda each: not each['error'])} |")
    lines.append(f"| architectures against transformers | {_passed(models, lambda each: each['ok'])} |")
    lines.append(f"| batches with adapters against peft | {_passed(adapters, lambda each: each['ok'])} |")
    yield "\n".join(lines)
    yield from _backends({name: each for name, each in results.get("backends", {}).items() if isinstance(each, dict)})
    lines = ["| decode steps | architectures |", "|---|---|"]
    lines.append(f"| captured ({len(captured)}) | {', '.join(captured)} |")
    lines.append(f"| launched op by op ({len(eager)}) | {', '.join(eager)} |")
    lines += [f"| results differ ({len(wrong)}) | {', '.join(wrong)} |"] if wrong else []
    yield "\n".join(lines)


def _backends(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    if not found:
        return
    lines = [
        "| `--attention-backend` | largest difference from the reference | milliseconds of a call |",
        "|---|---|---|",
    ]
    for name, each in found.items():
        if "skipped" in each:
            lines.append(f"| `{name}` | not run: {each['skipped']} | |")
            continue
        times = "; ".join(f"{what}: {time:.3f}" for what, time in each.get("ms", {}).items())
        worst = f"{each['worst']:.4f}" if "worst" in each else "failed"
        lines.append(f"| `{name}` | {worst if each.get('tokens_agree') else f'{worst}; other tokens'} | {times} |")
    yield "\n".join(lines)


def _passed(found: dict[str, Any], is_right: Callable[[dict[str, Any]], bool]) -> str:
    return f"{sum(map(is_right, found.values()))} of {len(found)}" if found else "not run"


def _speed(sizes: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    yield "### Level T: times"
    limits = next(iter(sizes.values()))["limits"]
    yield (
        f"A copy in the device's memory moves {limits['copy_bytes_per_s'] / 1e12:.2f} TB/s (bytes read and written); "
        f"a launch takes the host {limits['launch_us']:.1f} µs."
    )
    compared = {f"transformers, {name}": theirs[name] for name in sizes if isinstance(theirs.get(name), dict)}
    columns = {**sizes, **compared}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for key, (title, text) in ROWS.items():
        if any(key in found for found in columns.values()):
            cells = [text(found[key]) if key in found else "" for found in columns.values()]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    yield "\n".join(lines)


def main(*results: str) -> None:
    joined: dict[str, dict[str, Any]] = {}
    for result in results:
        for part, found in json.loads(Path(result).read_text()).items():
            joined.setdefault(part, {}).update(found)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    found = "\n\n".join(tables(joined))
    PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")


if __name__ == "__main__":
    main(*sys.argv[1:])
