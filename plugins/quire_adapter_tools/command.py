"""`platform adapters`: arguments, checks and reports of its three actions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quire import hub
from quire.errors import ConfigError
from quire.hooks.demos import from_demo
from quire.hooks.registry import load
from quire.isolation.isolated_calls import IsolatedCalls
from quire.isolation.plugin_calls import SubprocessCalls
from quire.records import DemoModel, Registry
from quire.settings.model_config import ModelConfig

TIMEOUT_S = 600.0
"""Limit for reading the files of an adapter, which is done in another process."""

CONFIG = "adapter_config.json"
DTYPES = ("float32", "float16", "bfloat16")

INSPECT = """\
Say what an adapter is (kind, rank, target modules, base model, sizes) and whether it runs here.

Only the configuration and the header of the tensors' file are read. With --model, every tensor is compared with the
model: exit status 0 if the adapter runs on it, 1 with the reason if not.

examples:
  platform adapters inspect ./my-adapter
  platform adapters inspect my-org/my-adapter --model ./my-model"""

MERGE = """\
Write a model with an adapter merged into its weights, as a model folder that needs no adapter.

LoRA, rsLoRA, DoRA and IA³, biases, embeddings, heads and experts are merged as the server applies them. The weights
of the model must not be quantized: merge first, then `platform quantize`.

example:
  platform adapters merge ./my-model ./my-adapter ./merged"""

EXTRACT = """\
Write a LoRA adapter of the difference between a model and a tuned one, by truncated singular value decomposition.

TUNED is a model folder with the same architecture, or an adapter of a kind that is not run here (LoHa, LoKr, …), whose
weights the package peft computes. The command prints the error of the truncation, and the tensors that differ but
cannot be part of an adapter, such as norms.

examples:
  platform adapters extract ./base ./tuned ./adapter --rank 32
  platform adapters extract ./base ./tuned ./adapter --rank 256 --energy 0.95
  platform adapters extract ./base ./loha-adapter ./lora-adapter"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="inspect|merge|extract")
    inspect = _action(actions, "inspect", INSPECT)
    inspect.add_argument("adapter", metavar="ADAPTER", help="folder, hub id, or name of a demo's adapter")
    inspect.add_argument("--model", metavar="MODEL", help="folder, hub id or demo that the adapter should run on")
    inspect.add_argument("--max-lora-rank", type=int, default=64, help="largest rank that the server will allow")
    inspect.add_argument("--json", action="store_true", help="print the report as JSON")
    merge = _action(actions, "merge", MERGE)
    merge.add_argument("model", metavar="MODEL", help="folder, hub id or demo")
    merge.add_argument("adapter", metavar="ADAPTER", help="folder, hub id, or name of a demo's adapter")
    merge.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must not exist, or be empty")
    extract = _action(actions, "extract", EXTRACT)
    extract.add_argument("model", metavar="BASE", help="folder, hub id or demo")
    extract.add_argument("tuned", metavar="TUNED", help="folder or hub id of the tuned model, or of an adapter")
    extract.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must not exist, or be empty")
    extract.add_argument("--rank", type=int, default=16, help="largest rank of a matrix")
    energy = "give a matrix the smallest rank up to --rank that keeps this share of its squared norm, from 0 to 1"
    extract.add_argument("--energy", type=float, default=1.0, help=energy)
    extract.add_argument("--dtype", choices=DTYPES, default="float32", help="data type of the adapter")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, description: str
) -> argparse.ArgumentParser:
    summary = description.partition("\n")[0].rstrip(".")
    return actions.add_parser(name, help=summary, description=description)


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises ConfigError, CheckpointError, BadRequest, UnknownArchitecture and PluginError."""
    action: Callable[[argparse.Namespace], int] = {"inspect": _inspect, "merge": _merge, "extract": _extract}[
        args.action
    ]
    return action(args)


def find_folder(name: str, registry: Registry) -> Path:
    """The folder of an adapter: a path, a demo's adapter, or a hub id, which is downloaded. Raises ConfigError."""
    demos: list[DemoModel] = list(registry.all("quire_demo_models"))
    known = {adapter: folder for demo in demos for adapter, folder in demo.adapters().items()}
    if name in known and not Path(name).exists():
        return known[name]
    return hub.resolve(name, ModelConfig(model=name))


@contextmanager
def _isolated() -> Iterator[SubprocessCalls]:
    calls = IsolatedCalls(TIMEOUT_S)
    try:
        yield calls
    finally:
        calls.close()


def _inspect(args: argparse.Namespace) -> int:
    from quire.commands.terminal_text import visible
    from quire_adapter_tools.base_model import read_base
    from quire_adapter_tools.inspection import facts, problem_on, read_adapter

    registry = load(args.plugins, options=args.registry.options, enable_lora=True)
    with _isolated() as calls:
        adapter = read_adapter(find_folder(args.adapter, registry), calls)
        base = read_base(args.model, registry) if args.model else None
        problem = problem_on(adapter, base, registry, args.max_lora_rank, calls)
    report, where = facts(adapter), f"on {args.model}" if args.model else "here"
    if args.json:
        print(json.dumps({**report, "model": args.model, "runs": problem is None, "problem": problem}, indent=1))
        return 0 if problem is None else 1
    for name, value in report.items():
        print(f"{name:20} {_shown(name, value)}")
    if problem is not None:
        print(f"It does not run {where}: {visible(problem)}")
        return 1
    more = "" if args.model else " if it fits the model (--model MODEL compares them)"
    print(f"It runs {where}{more}.")
    return 0


def _shown(name: str, value: object) -> str:
    from quire.commands.terminal_text import file_size, visible

    return file_size(value) if name == "bytes" and isinstance(value, int) else visible(str(value))


def _merge(args: argparse.Namespace) -> int:
    from quire_adapter_tools.base_model import read_base
    from quire_adapter_tools.merging import merge
    from quire_adapter_tools.stored_weights import StoredWeights

    stored = StoredWeights(read_base(args.model, args.registry))
    with _isolated() as calls:
        done = merge(stored, find_folder(args.adapter, args.registry), args.out, calls)
    untied = " The head is no longer tied to the embeddings." if done.unties else ""
    print(f"{args.adapter} is merged into {done.changed} tensors of {args.model}: {args.out}.{untied}")
    return 0


def _extract(args: argparse.Namespace) -> int:
    import torch

    from quire_adapter_tools.base_model import read_base
    from quire_adapter_tools.extraction import Extraction, Truncation, differences, extract
    from quire_adapter_tools.peft_deltas import deltas
    from quire_adapter_tools.stored_weights import StoredWeights

    if args.rank < 1 or not 0 < args.energy <= 1:
        raise ConfigError("--rank must be at least 1, and --energy more than 0 and at most 1.")
    base, result = read_base(args.model, args.registry), Extraction()
    tuned = find_folder(args.tuned, args.registry)
    if (tuned / CONFIG).is_file():
        found = deltas(base.folder, tuned)
    else:
        config = from_demo(ModelConfig(model=args.tuned), args.registry)
        after = StoredWeights(read_base(config.model, args.registry))
        found = differences(StoredWeights(base), after, result.left_out)
    extract(found, Truncation(args.rank, args.energy, getattr(torch, args.dtype)), args.model, args.out, result)
    low, high, (worst, error) = min(result.ranks.values()), max(result.ranks.values()), result.worst
    ranks = str(low) if low == high else f"{low} to {high}"
    print(f"{len(result.ranks)} matrices of rank {ranks}, {result.num_bytes / 1e6:.1f} MB: {args.out}")
    print(f"Truncation leaves {result.error:.2%} of the difference (norm); most in {worst}: {error:.2%}.")
    if result.left_out:
        print(f"Not part of the adapter, though they differ: {', '.join(result.left_out)}.")
    return 0
