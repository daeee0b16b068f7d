"""Plugin adapter-tools: the command `platform adapters`, which works on adapters in PEFT's format.

`inspection` says what an adapter is and whether it runs on a model, `merging` writes a model with an adapter in its
weights, `extraction` writes a LoRA adapter of a difference: of two checkpoints, or of an adapter of another kind, whose
deltas the package peft computes (`peft_deltas`). `base_model` describes the model, `stored_weights` reads its
numbers, `vectors` those of IA³ adapters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from quire import Command, hookimpl


@hookimpl
def quire_commands() -> Sequence[Command]:
    return [Command("adapters", "inspect, merge or extract an adapter", _configure, _run)]


def _configure(parser: argparse.ArgumentParser) -> None:
    from quire_adapter_tools.command import configure

    configure(parser)


def _run(args: argparse.Namespace) -> int:
    from quire_adapter_tools.command import run

    return run(args)
