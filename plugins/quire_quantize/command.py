"""`platform quantize`: arguments, checks and progress."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire import hub
from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig
from quire_kernels.quantized import QuantizedMatrix
from quire_models.loading import checkpoint, checkpoint_writer as writer
from quire_quantize import stored
from quire_quantize.methods.rounding import RoundingScheme, rounded
from quire_quantize.plan import DEFAULT_IGNORED, QuantizationPlan, read_plan, unquantized_modules

log = logging.getLogger(__name__)

METHODS = ("rtn", "search", "gptq", "awq")
CALIBRATED = ("gptq", "awq")
GROUP_SIZE = 128


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or hub id of the model")
    add("out", metavar="OUT", type=Path, help="folder to write; it must not exist, or be empty")
    add("--bits", type=int, choices=(4, 8), default=4, help="bits of a weight (default: 4)")
    add(
        "--group-size",
        type=int,
        help=f"inputs that share a scale, a multiple of 16 (default: {GROUP_SIZE}); only with 4 bits",
    )
    add("--asymmetric", action="store_true", help="store an integer zero for each group; only with 4 bits")
    add(
        "--method",
        choices=METHODS,
        default="search",
        help="rtn: round to nearest; search: search for scales with less error; gptq, awq: use the activations of "
        "calibration texts (default: search)",
    )
    add("--activation-bits", type=int, choices=(8, 16), default=16, help="8: inputs are rounded too; only with 8 bits")
    add("--calibration", type=Path, metavar="FILE", help="text, or .jsonl with a `text` in each line, for gptq and awq")
    add("--samples", type=int, default=128, help="maximum number of samples of the calibration file (default: 128)")
    add("--max-length", type=int, default=512, help="maximum number of tokens of a sample (default: 512)")
    add(
        "--ignore",
        action="append",
        metavar="PATTERN",
        help="leave matrices out: a glob over names such as lm_head or model.layers.0.*; may be given several times "
        f"(default: {', '.join(DEFAULT_IGNORED)})",
    )


def check(args: argparse.Namespace) -> None:
    """Raise ConfigError for arguments that do not go together."""
    if args.bits == 8 and (args.group_size is not None or args.asymmetric):
        raise ConfigError("--bits 8 has one scale for each output: leave out --group-size and --asymmetric.")
    if args.bits == 4 and args.activation_bits == 8:
        raise ConfigError("--activation-bits 8 needs --bits 8.")
    if args.group_size is not None and (args.group_size < 16 or args.group_size % 16):
        raise ConfigError(f"--group-size must be a multiple of 16; got {args.group_size}.")
    if (args.method in CALIBRATED) != (args.calibration is not None):
        needs = f"--method {args.method} needs --calibration FILE."
        raise ConfigError(needs if args.calibration is None else "--calibration is for --method gptq and awq.")
    if args.samples < 1 or args.max_length < 2:
        raise ConfigError("--samples must be at least 1, and --max-length at least 2.")


def run(args: argparse.Namespace) -> int:
    """Quantize and write. Raises ConfigError, CheckpointError, UnknownArchitecture and PluginError."""
    check(args)
    settings = ModelConfig(model=args.model)
    folder = hub.resolve(args.model, settings)
    ignored = DEFAULT_IGNORED if args.ignore is None else tuple(args.ignore)
    with writer.new_folder(args.out) as target:
        plan = read_plan(folder, args.registry, ignored)
        size = None if args.bits == 8 else args.group_size or GROUP_SIZE
        scheme = RoundingScheme(args.bits, size, args.asymmetric, args.method != "rtn")
        groups = _write_tensors(plan, _chosen(args, plan, scheme), target, args.activation_bits == 16)
        if args.bits == 8:
            groups = {None: [name for names in groups.values() for name in names]}
        config = stored.config_of(groups, unquantized_modules(plan), args.bits, args.asymmetric, args.activation_bits)
        writer.copy_other_files(folder, target)
        writer.write_config(target, {**checkpoint.raw_config(folder), "quantization_config": config})
    print(f"{len(plan.matrices)} matrices of {args.model} in {args.bits} bits: {args.out}")
    return 0


def _chosen(args: argparse.Namespace, plan: QuantizationPlan, scheme: RoundingScheme) -> Iterator[tuple[str, Any]]:
    """The results of the chosen method: names with quantized matrices or changed tensors."""
    if args.method not in CALIBRATED:
        return rounded(plan, plan.matrices, scheme)
    from quire.text.tokenizer.tokenizer import Tokenizer
    from quire_quantize.calibration import BlockRunner, load_model, read_samples
    from quire_quantize.methods.awq import awq
    from quire_quantize.methods.gptq import gptq

    samples = read_samples(args.calibration, Tokenizer.load(plan.folder), args.samples, args.max_length)
    model = load_model(plan, args.registry)
    return (gptq if args.method == "gptq" else awq)(plan, scheme, BlockRunner(model, plan.decoder, samples))


def _write_tensors(
    plan: QuantizationPlan, results: Iterator[tuple[str, Any]], target: Path, packed: bool
) -> dict[int | None, list[str]]:
    """Write all tensors; returns the quantized modules by their group size."""
    from tqdm import tqdm

    shards = writer.ShardWriter(target)
    groups: defaultdict[int | None, list[str]] = defaultdict(list)
    done: set[str] = set()
    with tqdm(total=len(plan.matrices), desc="quantizing", unit="matrix", file=sys.stderr, disable=None) as bar:
        for name, value in results:
            done.add(name)
            if not isinstance(value, QuantizedMatrix):
                shards.add(name, value)
                continue
            module = name.removesuffix(".weight")
            for part, tensor in stored.tensors_of(value, plan.files.read(name).dtype, packed).items():
                shards.add(f"{module}.{part}", tensor)
            groups[value.group_size].append(module)
            bar.update()
    for name in plan.files:
        if name not in done:
            shards.add(name, plan.files.read(name))
    shards.finish()
    return dict(groups)
