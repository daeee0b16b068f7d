"""GPTQ (Frantar et al., 2022, arXiv:2210.17323) as AutoGPTQ and GPTQModel store it.

Of a matrix [N, K]: `qweight` int32 [K · bits / 32, N], packed along the inputs; `qzeros` int32 [G, N · bits / 32],
packed along the outputs; `scales` [G, N]; `g_idx` int32 [K], the group of each input. Format v1 stores zeros minus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.formats import config_fields as fields
from quire_plugins.quantization.formats.stored_tensors import (
    MatrixTensors,
    Names,
    ReadTensor,
    Shape,
    columns,
    group_order,
    sizes,
    zero_offsets,
)
from quire_plugins.quantization.formats.unpacking import unpack, words_for

BITS = (2, 3, 4, 8)
NAMES = Names(("qweight", ".qweight"), {"qzeros": (".qzeros",), "scales": (".scales",)}, {"g_idx": (".g_idx",)})
INT32 = (torch.int32,)


@dataclass(frozen=True)
class Gptq:
    """bits, group_size: of each matrix; None = as the shapes of its tensors say, because the config has several (its
    field `dynamic`). A group size of -1 is all inputs. stored_less: zeros are stored minus one. has_order: `desc_act`.
    """

    bits: int | None
    group_size: int | None
    stored_less: bool
    has_order: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        fields.refuse(config, ("is_marlin_format", "rotation", "adapter"))
        bits, size = fields.integer(config, ("bits",)), fields.group_size(config, ("group_size",), -1)
        if bits not in BITS:
            raise fields.wrong("bits", bits, "2, 3, 4 or 8")
        if config.get("pack_dtype") not in (None, "int32"):
            raise fields.wrong("pack_dtype", config["pack_dtype"], "int32")
        version = fields.choice(config, ("checkpoint_format", "format"), ("gptq", "gptq_v2"), "gptq")
        if config.get("dynamic"):
            return cls(None, None, version == "gptq", fields.flag(config, "desc_act", False))
        return cls(bits, size, version == "gptq", fields.flag(config, "desc_act", False))

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each module with a `qweight`."""
        found = {}
        for module, parts in NAMES.grouped(shapes).items():
            words, outputs = sizes(parts["qweight"], shapes, 2)
            bits = self._bits(parts["qzeros"], outputs, shapes)
            inputs = sizes(parts["g_idx"], shapes, 1)[0] if "g_idx" in parts else words * 32 // bits
            if words_for(inputs, bits) != words:
                raise CheckpointError(f"{parts['qweight']} has {words} rows, which do not hold {inputs} inputs.")
            found[f"{module}.weight"] = StoredMatrix((outputs, inputs), parts)
        return found

    def _bits(self, name: str, outputs: int, shapes: Mapping[str, Shape]) -> int:
        words = sizes(name, shapes, 2)[1]
        found = [bits for bits in ((self.bits,) if self.bits else BITS) if words_for(outputs, bits) == words]
        if len(found) != 1:
            stated = f"{self.bits} bits" if self.bits else "any number of bits"
            raise CheckpointError(f"{name} has {words} columns, which do not hold {outputs} zeros of {stated}.")
        return found[0]

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> QuantizedMatrix:
        """One matrix; its inputs are in the order of their groups."""
        parts, (outputs, inputs) = MatrixTensors(stored, tensors), stored.shape
        words = parts.get("qzeros", INT32)
        bits, count = self._bits(stored.tensors["qzeros"], outputs, {stored.tensors["qzeros"]: words.shape}), len(words)
        run = inputs if self.group_size == -1 else self.group_size or -(-inputs // count)
        if -(-inputs // run) != count:
            raise parts.error("qzeros", f"has {count} groups, expected {-(-inputs // run)} of {run} inputs")
        size, runs = parts.groups("scales", inputs, run)
        scales = columns(parts.scales("scales", (count, outputs), negative=True).T, runs)
        zeros = columns(self._zeros(words, bits, outputs).T, runs)
        zero, offsets = zero_offsets(zeros, scales, 1 << (bits - 1))
        packed = parts.get("qweight", INT32, (words_for(inputs, bits), outputs))
        codes, order = unpack(packed.T.contiguous(), bits, inputs), self._order(parts, inputs, run)
        codes = codes if order is None else codes.index_select(1, order)
        return QuantizedMatrix(codes.contiguous(), scales, bits, size, zero, offsets, order=order)

    def _zeros(self, words: Tensor, bits: int, outputs: int) -> Tensor:
        """[G, N]. The first format has one less in each; where that was below zero, its word borrowed from the next
        zero, so that the word as a whole is right (`convert_gptq_v1_to_v2_format_module` of GPTQModel).
        """
        if self.stored_less and bits != 3:
            words = words + sum(1 << bit for bit in range(0, 32, bits))
        zeros = unpack(words, bits, outputs)
        return (zeros + 1) & 7 if self.stored_less and bits == 3 else zeros

    def _order(self, parts: MatrixTensors, inputs: int, run: int) -> Tensor | None:
        """The inputs sorted by group; None without `g_idx`, or if it was left empty because there is no order."""
        if not parts.has("g_idx"):
            return None
        is_empty = not self.has_order and not bool(parts.get("g_idx", (torch.int32, torch.int64)).any())
        return None if is_empty else group_order(parts, "g_idx", inputs, run)
