"""Plugin quantize: the command `platform quantize`, which writes a quantized checkpoint in compressed-tensors format.

`plan` finds the matrices of a checkpoint, `methods` quantize them, `calibration` runs the model on texts for the
methods that need it, and `stored` puts codes and scales into the tensors of the format.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from quire import Command, hookimpl


@hookimpl
def quire_commands() -> Sequence[Command]:
    return [Command("quantize", "write a checkpoint with weights of 4 or 8 bits", _configure, _run)]


def _configure(parser: argparse.ArgumentParser) -> None:
    from quire_quantize.command import configure

    configure(parser)


def _run(args: argparse.Namespace) -> int:
    from quire_quantize.command import run

    return run(args)
