"""FP8 (E4M3, OCP 8-bit Floating Point Specification) as DeepSeek, Qwen and Mistral publish it.

`weight` float8_e4m3fn [N, K] with `weight_scale_inv` or `weight_scale`, by which it is multiplied: one value, one for
each output, or one for each block of `weight_block_size`. Scales of activations are not needed, because products widen
the weight and leave their input as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.formats import config_fields as fields
from quire_plugins.quantization.formats.scaled import read_float8
from quire_plugins.quantization.formats.stored_tensors import MatrixTensors, ReadTensor, Shape, sizes

SCALES = (".weight_scale_inv", ".weight_scale")
ACTIVATION_SCALES = (".activation_scale", ".input_scale")


@dataclass(frozen=True)
class Fp8:
    """block: outputs and inputs that share a scale; None = the tensor or an output has one."""

    block: tuple[int, int] | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        fields.choice(config, ("activation_scheme",), ("dynamic", "static"), "dynamic")
        fields.choice(config, ("fmt",), ("e4m3", "float8_e4m3fn"), "e4m3")
        fields.choice(config, ("expert_dtype",), ("fp8",), "fp8")
        return cls(fields.pair(config.get("weight_block_size"), "weight_block_size"))

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each `weight` with a scale beside it."""
        found: dict[str, StoredMatrix] = {}
        for name in shapes:
            end = next((end for end in SCALES if name.endswith(end)), None)
            if end is None:
                continue
            module = name.removesuffix(end)
            weight = f"{module}.weight"
            if weight not in shapes:
                raise CheckpointError(f"{name}: the checkpoint has no {weight} beside it.")
            if weight in found:
                raise CheckpointError(f"{name}: {weight} has another scale, {found[weight].tensors['scales']}.")
            parts = {"weight": weight, "scales": name}
            parts |= {end[1:]: module + end for end in ACTIVATION_SCALES if module + end in shapes}
            found[weight] = StoredMatrix(sizes(weight, shapes, 2), parts)
        return found

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> QuantizedMatrix:
        """Unpack the tensors of one matrix."""
        return read_float8(MatrixTensors(stored, tensors), "scales", stored.shape, self.block)
