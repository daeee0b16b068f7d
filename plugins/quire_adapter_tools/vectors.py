"""IA³ adapters (arXiv 2205.05638): vectors that scale outputs (with their biases) or inputs of matrices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from quire.errors import BadRequest
from quire.isolation.plugin_calls import SubprocessCalls
from quire_adapters.peft import tensor_files
from quire_adapters.target_modules import LinearTarget, TargetModules

MAX_BYTES = 1 << 28
"""Size limit of the file of an adapter whose tensors are vectors."""

_NAME = re.compile(r"base_model\.model\.(?P<module>.*)\.ia3_l")

Rows = tuple[int, int]
"""(start, stop) of a matrix in the outputs of the projection that it was fused into."""


@dataclass(frozen=True, eq=False)
class ScalingVectors:
    """Factors of outputs [rows] and of inputs [inputs], float32, by the projection's path and the matrix's rows."""

    outputs: dict[str, dict[Rows, Tensor]] = field(default_factory=dict)
    inputs: dict[str, dict[Rows, Tensor]] = field(default_factory=dict)


def target_of(name: str, shape: tuple[int, ...], targets: TargetModules) -> tuple[str, LinearTarget]:
    """The module that a vector scales, by its name in the checkpoint and here. Raises BadRequest if it does not fit."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadRequest(f"{name!r} is not an IA³ vector; an IA³ adapter can have nothing else.")
    target = targets.find(match["module"])
    if not isinstance(target, LinearTarget) or not target.path.startswith("blocks."):
        raise BadRequest(f"The adapter scales {match['module']!r}, which is not a matrix of the model's blocks.")
    outputs, inputs = target.shape
    if shape not in ((outputs, 1), (1, inputs)):
        raise BadRequest(f"{name!r} has shape {list(shape)}; it must be [1, {inputs}] or [{outputs}, 1].")
    return match["module"], target


def read_vectors(folder: Path, targets: TargetModules, in_subprocess: SubprocessCalls) -> ScalingVectors:
    """Read and check the vectors of an adapter. Raises BadRequest."""
    found = in_subprocess(tensor_files.read, str(folder), MAX_BYTES, targets.max_tensors, memory_bytes=MAX_BYTES)
    vectors = ScalingVectors()
    tensors: Mapping[str, Tensor] = tensor_files.tensors_of(found.value, found.memory)
    for name, tensor in tensors.items():
        module, target = target_of(name, tuple(tensor.shape), targets)
        factors = tensor.flatten().float()
        if not factors.isfinite().all():
            raise BadRequest(f"{name!r} has numbers that are not finite.")
        rows = target.start, target.stop
        if tensor.shape[0] == 1 and target.shape[1] == tensor.shape[1]:
            vectors.inputs.setdefault(target.path, {})[rows] = factors
            continue
        order = targets.row_order(module)
        vectors.outputs.setdefault(target.path, {})[rows] = factors if order is None else factors[order]
    return vectors
