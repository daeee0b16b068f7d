"""Random checkpoint tensors of each quantized format, packed code by code, with the weights that they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization import awq, bitsandbytes, compressed_tensors, fp8, gptq, mxfp4

CHECKPOINTS = {
    "gptq": gptq.checkpoint,
    "awq": awq.checkpoint,
    "compressed-tensors": compressed_tensors.checkpoint,
    "fp8": fp8.checkpoint,
    "bitsandbytes": bitsandbytes.checkpoint,
    "mxfp4": mxfp4.checkpoint,
}


@dataclass
class Stored:
    """A checkpoint's `quantization_config`, tensors, and the weights that they stand for, float32 by name."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """What the format of the config makes of the tensors."""
        return read(self.config, self.tensors)

    def named(self, name: str) -> Stored:
        """The tensors under the name of another module than "a.b"."""
        tensors = {other.replace("a.b", name, 1): tensor for other, tensor in self.tensors.items()}
        return Stored(self.config, tensors, {f"{name}.weight": self.weights["a.b.weight"]})

    def with_config(self, **fields: Any) -> Stored:
        return Stored({**self.config, **fields}, self.tensors, self.weights)

    def with_tensor(self, name: str, tensor: Tensor | None) -> Stored:
        tensors = {**self.tensors, name: tensor}
        return Stored(self.config, {name: t for name, t in tensors.items() if t is not None}, self.weights)


def read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """All quantized weights of a checkpoint, each a valid matrix, or a list of them for experts."""
    found = CHECKPOINTS[config["quant_method"]](config)
    stored = found.matrices({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)
    read = {
        name: found.read(name, matrix, {part: tensors[other] for part, other in matrix.tensors.items()})
        for name, matrix in stored.items()
    }
    for name, value in read.items():
        matrices = value if isinstance(value, list) else [value]
        assert all(isinstance(matrix, QuantizedMatrix) and matrix.problem() is None for matrix in matrices), name
        shape = (len(value), *matrices[0].shape) if isinstance(value, list) else tuple(matrices[0].shape)
        assert stored[name].shape == shape, name
    return read


def dense(read: Mapping[str, Any]) -> dict[str, Tensor]:
    """Matrices, and lists of experts, dequantized."""
    return {
        name: torch.stack([m.dequantized() for m in value]) if isinstance(value, list) else value.dequantized()
        for name, value in read.items()
    }


def packed(codes: Tensor, bits: int) -> Tensor:
    """codes [rows, count] -> int32 [rows, words]: code i of a row has its bits i · bits …"""
    words = -(-codes.shape[1] * bits // 32)
    rows = [sum(code << (i * bits) for i, code in enumerate(row)) for row in codes.tolist()]
    values = [[(row >> (32 * word)) & 0xFFFFFFFF for word in range(words)] for row in rows]
    return torch.tensor(values, dtype=torch.int64).to(torch.int32)


def codes(rows: int, columns: int, bits: int) -> Tensor:
    return torch.randint(0, 1 << bits, (rows, columns))


def scales(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return (torch.rand(shape) * 0.02 + 0.01).to(dtype)


def gptq_tensors(
    name: str, shape: tuple[int, int], bits: int, size: int, *, v2: bool, asymmetric: bool, order: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """(tensors, weight [N, K]) of one matrix. order: the group of each input; None = in their order."""
    outputs, inputs = shape
    groups = -(-inputs // size)
    values, each = codes(outputs, inputs, bits), scales(groups, outputs) * 2.0 ** (4 - bits)
    zeros = codes(groups, outputs, bits).clamp(min=1) if asymmetric else torch.full((groups, outputs), 1 << (bits - 1))
    of_input = torch.arange(inputs) // size if order is None else order
    tensors = {
        f"{name}.qweight": packed(values, bits).T.contiguous(),
        f"{name}.qzeros": packed(zeros if v2 else zeros - 1, bits),
        f"{name}.scales": each,
        f"{name}.g_idx": of_input.int(),
    }
    return tensors, ((values - zeros.T[:, of_input]) * each.float().T[:, of_input])


def gptq_stored(
    bits: int = 4,
    size: int = 32,
    shape: tuple[int, int] = (32, 96),
    *,
    v2: bool = False,
    asymmetric: bool = True,
    order: Tensor | None = None,
) -> Stored:
    tensors, weight = gptq_tensors(
        "a.b", shape, bits, size if size > 0 else shape[1], v2=v2, asymmetric=asymmetric, order=order
    )
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order is not None, "sym": False}
    config["checkpoint_format"] = "gptq_v2" if v2 else "gptq"
    return Stored(config, tensors, {"a.b.weight": weight})


INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)


def awq_stored(size: int = 32, shape: tuple[int, int] = (32, 96), gemv: bool = False) -> Stored:
    outputs, inputs = shape
    run = size if size > 0 else inputs
    values, zeros = codes(outputs, inputs, 4), codes(outputs, inputs // run, 4)
    each = scales(outputs, inputs // run)
    if gemv:
        width = 8 * (-(-zeros.shape[1] // 32) * 4)
        padded = torch.zeros(2, outputs, width)
        padded[0, :, : zeros.shape[1]], padded[1, :, : zeros.shape[1]] = zeros, each
        tensors = {"qweight": packed(values, 4), "qzeros": packed(padded[0].long(), 4), "scales": padded[1].half()}
    else:
        places = torch.arange(outputs).view(-1, 8)[:, INTERLEAVED].reshape(-1)
        tensors = {"qweight": packed(values.T[:, places], 4), "qzeros": packed(zeros.T[:, places], 4)}
        tensors["scales"] = each.T.contiguous()
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True}
    weight = (values - zeros.repeat_interleave(run, 1)) * each.float().repeat_interleave(run, 1)
    named = {f"a.b.{part}": tensor for part, tensor in tensors.items()}
    return Stored({**config, "version": "gemv" if gemv else "gemm"}, named, {"a.b.weight": weight})


def fp8_stored(
    shape: tuple[int, int] = (32, 96), block: Sequence[int] | None = None, per_channel: bool = False
) -> Stored:
    outputs, inputs = shape
    weight = (torch.randn(shape) * 8).to(torch.float8_e4m3fn)
    if block is not None:
        each = scales(-(-outputs // block[0]), -(-inputs // block[1]), dtype=torch.float32)
        wide = each.repeat_interleave(block[0], 0)[:outputs].repeat_interleave(block[1], 1)[:, :inputs]
    else:
        each = scales(outputs, 1, dtype=torch.float32) if per_channel else scales(1, dtype=torch.float32)[0]
        wide = each
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}
    tensors = {"a.b.weight": weight, "a.b.weight_scale_inv": each}
    return Stored(config, tensors, {"a.b.weight": weight.float() * wide})


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4_stored(experts: int = 3, shape: tuple[int, int] = (32, 96)) -> Stored:
    outputs, inputs = shape
    values = torch.randint(0, 16, (experts, outputs, inputs))
    exponents = torch.randint(118, 124, (experts, outputs, inputs // 32), dtype=torch.uint8)
    pairs = values.view(experts, outputs, inputs // 32, 16, 2)
    tensors = {"e.gate_up_proj_blocks": (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8)}
    tensors["e.gate_up_proj_scales"] = exponents
    numbers = torch.tensor([*E2M1, *(-value for value in E2M1)])[values]
    weight = numbers * torch.exp2(exponents.float() - 127).repeat_interleave(32, 2)
    return Stored({"quant_method": "mxfp4"}, tensors, {"e.gate_up_proj": weight})


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Values of NF4 (QLoRA, appendix E)."""


def bnb_state(**fields: Any) -> Tensor:
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def bnb4_stored(
    shape: tuple[int, int] = (32, 96), size: int = 32, nested: bool = False, storage: torch.dtype = torch.uint8
) -> Stored:
    outputs, inputs = shape
    values, table = codes(1, outputs * inputs, 4)[0], torch.tensor(NF4)
    blocks = -(-outputs * inputs // size)
    state = {"quant_type": "nf4", "blocksize": size, "dtype": "bfloat16", "shape": list(shape)}
    tensors = {
        "a.b.weight": (values[0::2] * 16 + values[1::2]).to(torch.uint8).view(storage)[:, None],
        "a.b.weight.quant_map": table,
    }
    if nested:
        stored, kinds = torch.randint(0, 256, (blocks,), dtype=torch.uint8), torch.linspace(-1, 1, 256)
        tops = scales(-(-blocks // 16), dtype=torch.float32)
        tensors |= {"a.b.weight.absmax": stored, "a.b.weight.nested_absmax": tops, "a.b.weight.nested_quant_map": kinds}
        state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.05}
        each = kinds[stored.long()] * tops.repeat_interleave(16)[:blocks] + 0.05
    else:
        each = tensors["a.b.weight.absmax"] = scales(blocks, dtype=torch.float32)
    tensors["a.b.weight.quant_state.bitsandbytes__nf4"] = bnb_state(**state)
    weight = table[values] * each.repeat_interleave(size)[: len(values)]
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return Stored(config, tensors, {"a.b.weight": weight.view(shape)})


def bnb8_stored(shape: tuple[int, int] = (32, 96)) -> Stored:
    weight, tops = torch.randint(-127, 128, shape, dtype=torch.int8), scales(shape[0], dtype=torch.float32) * 16
    tensors = {"a.b.weight": weight, "a.b.SCB": tops, "a.b.weight_format": torch.tensor(0, dtype=torch.uint8)}
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return Stored(config, tensors, {"a.b.weight": weight.float() * tops[:, None] / 127})
