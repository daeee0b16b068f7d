"""Checkpoints of bitsandbytes: NF4 and FP4 (QLoRA, Dettmers et al., 2023, arXiv:2305.14314), and LLM.int8().

4 bits: `weight` has two codes a byte of the matrix as one row, the high half first; `weight.absmax` the scale of each
block of it; `weight.quant_map` float32 [16] the values of the codes; `weight.quant_state.bitsandbytes__nf4` (`__fp4`) a
JSON object as bytes, with the shape. Nested scales are codes of 8 bits with `weight.nested_absmax` and
`weight.nested_quant_map`. 8 bits: `weight` int8 [N, K] and `SCB` float32 [N], the largest magnitude of each output.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import MIN_GROUP, QuantizedMatrix
from quire_plugins.quantization.formats import config_fields as fields
from quire_plugins.quantization.formats.scaled import signed_codes
from quire_plugins.quantization.formats.stored_tensors import FLOATS, MatrixTensors, ReadTensor, Shape, sizes
from quire_plugins.quantization.formats.unpacking import unpack_high_first

STATE = ".quant_state.bitsandbytes__"
STORAGE = (torch.uint8, torch.int8, *FLOATS)
"""What `bnb_4bit_quant_storage` may be: the codes are the bytes of such numbers."""
QUANT_TYPES = ("nf4", "fp4")
MAX_STATE = 4096
"""Bytes of the JSON object of a matrix."""
MAX_SIZE = 1 << 40
INT8_STEPS = 127


@dataclass(frozen=True)
class BitsAndBytes:
    """The checkpoint's tensors say which matrices have how many bits."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        is_four = fields.flag(config, "load_in_4bit", False) or fields.flag(config, "_load_in_4bit", False)
        is_eight = fields.flag(config, "load_in_8bit", False) or fields.flag(config, "_load_in_8bit", False)
        if is_four == is_eight:
            raise CheckpointError("quantization_config: one of load_in_4bit and load_in_8bit must be true.")
        if is_four:
            fields.choice(config, ("bnb_4bit_quant_type",), QUANT_TYPES, "fp4")
        return cls()

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each `weight` with a quantization state, which says its shape, or an `SCB`."""
        found: dict[str, StoredMatrix] = {}
        for name in shapes:
            if name.endswith(".SCB"):
                module = name.removesuffix(".SCB")
                parts = _parts(name, shapes, {"weight": f"{module}.weight"}, {"format": f"{module}.weight_format"})
                shape = sizes(parts["weight"], shapes, 2)
            elif STATE in name:
                weight = name.rpartition(STATE)[0]
                maps = {part: f"{weight}.{part}" for part in ("absmax", "quant_map")}
                nested = {part: f"{weight}.{part}" for part in ("nested_absmax", "nested_quant_map")}
                parts = _parts(name, shapes, {"weight": weight, **maps}, nested)
                shape = _state(MatrixTensors(StoredMatrix((), parts), {"state": read(name)})).shape
            else:
                continue
            if parts["weight"] in found:
                raise CheckpointError(f"{name}: {parts['weight']} is quantized in two ways.")
            found[parts["weight"]] = StoredMatrix(shape, parts)
        return found

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> QuantizedMatrix:
        """Unpack the tensors of one matrix."""
        parts = MatrixTensors(stored, tensors)
        return _read_four_bits(parts) if parts.has("absmax") else _read_int8(parts, stored.shape)


def _parts(
    name: str, shapes: Mapping[str, Shape], needed: Mapping[str, str], optional: Mapping[str, str]
) -> dict[str, str]:
    """The tensors of a matrix; "state" is the one that marks it."""
    for other in needed.values():
        if other not in shapes:
            raise CheckpointError(f"{name}: the checkpoint has no {other} beside it.")
    return {"state": name, **needed, **{part: other for part, other in optional.items() if other in shapes}}


def _read_int8(parts: MatrixTensors, shape: Shape) -> QuantizedMatrix:
    """weight · SCB / 127. Only the format 0, rows, is for CPUs."""
    if parts.has("format") and bool((parts.get("format", (torch.uint8, torch.int64)) != 0).any()):
        raise parts.error("format", "is not 0 (rows), the only format that is supported")
    weight = parts.get("weight", (torch.int8,), shape)
    scales = parts.scales("state").reshape(-1)
    if len(scales) != len(weight):
        raise parts.error("state", f"has {len(scales)} values, expected {len(weight)}")
    return QuantizedMatrix(signed_codes(weight), (scales / INT8_STEPS)[:, None], 8, shape[1], zero=128)


@dataclass(frozen=True)
class _State:
    """What the JSON object of a matrix says. nested_size, nested_offset: of nested scales, None without."""

    shape: tuple[int, int]
    block_size: int
    nested_size: int | None
    nested_offset: float


def _read_four_bits(parts: MatrixTensors) -> QuantizedMatrix:
    state = _state(parts)
    outputs, inputs = state.shape
    stored = parts.get("weight", STORAGE)
    if stored.numel() * stored.element_size() != -(-outputs * inputs // 2):
        count = stored.numel() * stored.element_size()
        raise parts.error("weight", f"has {count} bytes, which do not hold {outputs} x {inputs} codes")
    group = math.gcd(inputs, state.block_size)
    if group != inputs and group % MIN_GROUP:
        reason = f"has blocks of {state.block_size}, which do not divide rows of {inputs} in multiples of {MIN_GROUP}"
        raise parts.error("state", reason)
    scales = _block_scales(parts, state, -(-outputs * inputs // state.block_size))
    blocks = torch.arange(0, outputs * inputs, group) // state.block_size
    table = parts.scales("quant_map", (16,), negative=True)
    codes = unpack_high_first(stored.contiguous().view(-1).view(torch.uint8))[: outputs * inputs].view(outputs, inputs)
    return QuantizedMatrix(codes, scales[blocks].view(outputs, inputs // group), 4, group, table=table)


def _block_scales(parts: MatrixTensors, state: _State, blocks: int) -> Tensor:
    """float32 [blocks]; nested scales are map[code] · scale of the code's own block + offset."""
    if state.nested_size is None:
        return parts.scales("absmax", (blocks,))
    codes = parts.get("absmax", (torch.uint8,), (blocks,))
    values = parts.scales("nested_quant_map", (256,), negative=True)[codes.int()]
    scales = parts.scales("nested_absmax", (-(-blocks // state.nested_size),))
    values *= scales[torch.arange(blocks) // state.nested_size]
    return parts.finite("nested_absmax", values + state.nested_offset, negative=True)


def _state(parts: MatrixTensors) -> _State:
    stored = parts.get("state", (torch.uint8,))
    if stored.dim() != 1 or len(stored) > MAX_STATE:
        raise parts.error("state", f"has shape {list(stored.shape)}, expected at most {MAX_STATE} bytes")
    try:
        value = json.loads(bytes(stored.tolist()))
    except (ValueError, RecursionError) as error:
        raise parts.error("state", f"is not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise parts.error("state", "is not a JSON object")
    shape = value.get("shape")
    if not (isinstance(shape, list) and len(shape) == 2):
        raise parts.error("state", f"has the shape {fields.shown(shape)}, expected two sizes")
    outputs, inputs = (_size(parts, "shape", size) for size in shape)
    if not parts.has("nested_absmax"):
        return _State((outputs, inputs), _size(parts, "blocksize", value.get("blocksize")), None, 0)
    if not parts.has("nested_quant_map"):
        raise parts.error("nested_absmax", "has no nested_quant_map beside it")
    nested_size, offset = _size(parts, "nested_blocksize", value.get("nested_blocksize")), value.get("nested_offset")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not abs(offset) < math.inf:
        raise parts.error("state", f"has the nested_offset {fields.shown(offset)}, expected a number")
    return _State((outputs, inputs), _size(parts, "blocksize", value.get("blocksize")), nested_size, offset)


def _size(parts: MatrixTensors, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_SIZE:
        raise parts.error("state", f"has the {field} {fields.shown(value)}, expected a size")
    return value
