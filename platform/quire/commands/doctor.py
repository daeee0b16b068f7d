"""`platform doctor`: shows this machine, and for each op the implementation that runs here and why others do not."""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import shlex
import sys
from typing import Any

from quire import __version__
from quire.records import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="device to choose the ops for"
    )
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("float32", "float16", "bfloat16"),
        help="data type to choose the ops for",
    )
    parser.add_argument(
        "--model", help="a folder or repository: say what would build it, and what its sequences would take"
    )
    parser.add_argument("--model-impl", default="auto", help="as for serve, for --model")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow code of the model's folder to run, for --model"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _facts(device: Any) -> dict[str, Any]:
    import torch

    facts = {
        "quire": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "system": f"{machine.system()} {machine.machine()}",
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        "device": str(device),
    }
    if device.type == "cpu":
        facts |= _cpu_facts()
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
        facts["GPU memory"] = f"{torch.cuda.mem_get_info(device)[1] / 2**30:.1f} GiB"
    return facts


def _cpu_facts() -> dict[str, Any]:
    """Facts about the C++ ops; compiles them if they have not been compiled yet."""
    from quire_kernels.cpu import build, implementations, isa

    command, sets = build.compiler(), [found.name for found in isa.available()]
    facts = {"CPU instructions": ", ".join(sets) or f"no {isa.INSTRUCTION_SETS[-1].name}"}
    try:
        facts["C++ compiler"] = f"{shlex.join(command)} ({build.version(command)})" if command else "none"
        used = implementations.compiled().isa
        facts["C++ ops"] = f"{build.library(used)}, for {used.name}"
    except build.BuildError as error:
        facts["C++ ops"] = f"not in use: {error}"
    return facts


def _choices(args: argparse.Namespace, device: Any) -> list[dict[str, Any]]:
    import torch

    from quire.engine.loading.op_choice import choose_ops, op_query

    ops = choose_ops(op_query(device, getattr(torch, args.dtype)), args.registry)
    return [
        {
            "op": choice.op,
            "chosen": choice.name,
            "plugin": choice.plugin,
            "others": {f"{other.name} ({other.plugin})": other.reason for other in choice.rejected},
        }
        for choice in ops.report
    ]


def _attention_backends(args: argparse.Namespace, device: Any) -> list[dict[str, Any]]:
    """Everything that `--attention-backend` may name here, and why it cannot run."""
    import torch

    from quire.engine.loading.op_choice import op_query
    from quire_kernels.select import attention_backends

    registry = args.registry
    ops = [(registry.plugin_of("quire_ops", name), impl) for name, impl in registry.by_hook("quire_ops").items()]
    found = attention_backends(op_query(device, getattr(torch, args.dtype)), ops)
    return [{"name": each.name, "plugin": each.plugin, "reason": each.reason} for each in found]


def _model_facts(args: argparse.Namespace) -> dict[str, str]:
    """What would build the model that is asked for, and the state and pages of its sequences."""
    import torch

    from quire.engine.architectures.report import model_report
    from quire.settings.model_config import ModelConfig

    if args.model is None:
        return {}
    config = ModelConfig(model=args.model, model_impl=args.model_impl, trust_remote_code=args.trust_remote_code)
    return model_report(config, args.registry, getattr(torch, args.dtype))


def _run(args: argparse.Namespace) -> int:
    from quire.engine.loading.load import choose_device

    device = choose_device(args.device)
    facts, choices = _facts(device) | _model_facts(args), _choices(args, device)
    backends = _attention_backends(args, device)
    plugins = [plugin.name for plugin in args.registry.plugins]
    if args.json:
        print(json.dumps({**facts, "plugins": plugins, "ops": choices, "attention back ends": backends}, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, fact in facts.items():
        console.print(f"{name:18} {fact}", highlight=False)
    console.print(f"{'plugins':18} {', '.join(plugins) or 'none'}", highlight=False)
    title = f"ops on {device.type}, {args.dtype}"
    table = Table("op", "implementation", "plugin", "why not the others", title=title, show_lines=True)
    for row in _rows(choices):
        table.add_row(*row)
    console.print(table)
    title = f"--attention-backend on {device.type}, {args.dtype}; a model may rule out others"
    table = Table("back end", "plugin", "usable", title=title)
    for each in backends:
        table.add_row(each["name"], each["plugin"], f"no: {each['reason']}" if each["reason"] else "yes")
    console.print(table)
    return 0


def _rows(choices: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """The choices as table rows: one row for ops with equal choices, one line per reason within a row."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for choice in choices:
        by_reason: dict[str, list[str]] = {}
        for name, reason in choice["others"].items():
            by_reason.setdefault(reason, []).append(name.removesuffix(" (built-in)"))
        others = "\n".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        grouped.setdefault((choice["chosen"], choice["plugin"], others), []).append(choice["op"])
    return [("\n".join(ops), *columns) for columns, ops in grouped.items()]


COMMAND = Command(
    "doctor", "show this machine, and which implementation of each operation runs and why", _configure, _run
)
