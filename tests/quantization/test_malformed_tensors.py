"""Configs and tensors that are damaged in any way give a matrix or a CheckpointError, and nothing else."""

import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from compressed_checkpoints import compressed, scheme
from quantized_tensors import (
    Stored,
    awq_stored,
    bnb4_stored,
    bnb8_stored,
    fp8_stored,
    gptq_stored,
    mxfp4_stored,
)
from torch import Tensor

from quire.errors import CheckpointError

GROUPED = {"strategy": "group", "group_size": 32}
STORED: dict[str, Callable[[], Stored]] = {
    "gptq": gptq_stored,
    "gptq, 3 bits in order": lambda: gptq_stored(3, order=torch.randperm(96) // 32),
    "awq": awq_stored,
    "awq, gemv": lambda: awq_stored(gemv=True),
    "fp8": lambda: fp8_stored(block=[16, 32]),
    "fp8, one scale": fp8_stored,
    "mxfp4": mxfp4_stored,
    "nf4": bnb4_stored,
    "nf4, nested": lambda: bnb4_stored(nested=True),
    "bitsandbytes, int8": bnb8_stored,
    "packed": lambda: compressed(scheme(symmetric=False, **GROUPED)),
    "packed, 6 bits": lambda: compressed(scheme(num_bits=6, strategy="channel")),
    "int8": lambda: compressed(scheme(format="int-quantized", num_bits=8, symmetric=False, strategy="channel")),
    "float8": lambda: compressed(scheme(format="float-quantized", num_bits=8, type="float", strategy="tensor")),
}
DTYPES = (torch.float16, torch.float32, torch.int32, torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 5, 7, 17, 10**30, 0.5, float("nan"), "", "gemm", "x" * 500, [], [1], [0, 0],
    [-1, 16], [16, 2**70], {}, {"a": 1}, [None], "128x128", "9" * 5000 + "x1",
)  # fmt: skip


def damaged(tensor: Tensor, chance: random.Random) -> Tensor | None:
    match chance.randrange(9):
        case 0:
            return None
        case 1:
            return tensor.reshape(-1)[: chance.randrange(tensor.numel() + 1)]
        case 2:
            return tensor.reshape(-1)[None]
        case 3:
            return tensor.to(chance.choice(DTYPES)) if tensor.dtype != torch.float8_e4m3fn else tensor.float()
        case 4:
            return tensor.new_zeros([chance.choice([0, 1, 8, 16, 96]) for _ in range(chance.randrange(4))])
        case 5:
            return torch.cat([tensor.reshape(-1)] * 2)
        case 6 if tensor.dtype.is_floating_point and tensor.dtype != torch.float8_e4m3fn:
            return torch.full_like(
                tensor,
                chance.choice([float("nan"), float("inf"), -1.0, 6e4, -1e38 if tensor.dtype == torch.float32 else 1.0]),
            )
        case 7 if tensor.dim() >= 2:
            return tensor.transpose(0, -1)
    bytes_ = tensor.clone().reshape(-1).view(torch.uint8)
    for _ in range(chance.randrange(1, 4) if len(bytes_) else 0):
        bytes_[chance.randrange(len(bytes_))] = chance.randrange(256)
    return bytes_.view(tensor.dtype).view(tensor.shape)


def damage(stored: Stored, chance: random.Random) -> Stored:
    config, tensors = deepcopy(stored.config), dict(stored.tensors)
    if chance.random() < 0.3:
        fields = config
        while isinstance(inner := fields.get(chance.choice([*fields, "group_0", "weights"])), dict) and inner:
            fields = inner
        fields[chance.choice([*fields, "group_size", "bits"])] = chance.choice(VALUES)
    for _ in range(chance.randrange(1, 3)):
        name = chance.choice([*tensors])
        tensor = damaged(tensors.pop(name), chance) if name in tensors else None
        if tensor is not None:
            tensors[name] = tensor
        if not tensors:
            break
    return Stored({**config, "quant_method": stored.config["quant_method"]}, tensors)


@pytest.mark.parametrize("name", STORED)
def test_damaged_checkpoints_are_refused_or_read(name: str) -> None:
    chance, refused, reasons = random.Random(name), 0, set()
    torch.manual_seed(0)
    for _ in range(40):
        whole = STORED[name]()
        for _ in range(20):
            case = damage(whole, chance)
            try:
                case.read()
            except CheckpointError as error:
                refused += 1
                reasons.add(re.sub(r"\d+", "", error.message))
    assert refused > 200
    assert len(reasons) > 8, reasons
