"""Implementations of operations on a device, and quantizations of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OpQuery:
    """The conditions under which an operation would run: device type ("cpu", "cuda"), dtype name, device features.

    page_size: tokens in a page. head_dims: head dimensions of the model's blocks, () without a model.
    kv_dtype: how keys and values are stored, "auto" (as `dtype`), "int8" or "int4". needs: names of the
    implementations without which the model's answers would be wrong. attention_options: what the model's blocks ask of
    `paged_attention` beyond its first arguments (`quire_kernels.attention.OPTIONS`). attention_backend: name of the
    implementation of `paged_attention` that the user asks for, "auto" = the one with the highest priority.
    """

    device: str
    dtype: str
    features: frozenset[str] = frozenset()
    page_size: int = 16
    head_dims: tuple[int, ...] = ()
    kv_dtype: str = "auto"
    needs: frozenset[str] = frozenset()
    attention_options: frozenset[str] = frozenset()
    attention_backend: str = "auto"


@dataclass(frozen=True)
class OpImpl:
    """An implementation of an operation in `quire_kernels.ops`.

    supports: returns None, or the reason why it cannot run under these conditions. load: imports or compiles, and
    returns a callable with the signature of the operation. Of the implementations that support a query the one with
    the highest priority is chosen.
    layout: how paged_attention, write_kv and rotary_write_kv arrange keys and values within a page; the three are
    chosen so that they agree. "plain" is the layout in `quire_kernels.ops`. kv_dtypes: values of `OpQuery.kv_dtype`
    that these three support; with "int8" and "int4" the pools hold what `quire_kernels.quantized_pages` describes, in
    as many bytes per head; a layout other than "plain" may arrange them in its own way.
    on_request: it is chosen only for models that name it in `needs_ops` of the `Architecture` or of a part, or if
    `--attention-backend` names it.
    attention_options: values of `OpQuery.attention_options` that paged_attention supports; the ops that store pages
    need "value_dim" only. An implementation is not chosen for models that use others.
    """

    name: str
    op: str
    supports: Callable[[OpQuery], str | None]
    load: Callable[[], Callable[..., Any]]
    priority: int = 0
    layout: str = "plain"
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False
    attention_options: tuple[str, ...] = ()


Shape = tuple[int, ...]


@dataclass(frozen=True)
class QuantizationOptions:
    """The settings that a quantization at loading may follow.

    group_size: inputs that share a scale, None = the method's default. activation_bits: 8, or 16 for products that do
    not round their input. module: path of the matrix in the model, such as blocks.0.attn.qkv or head; empty for the
    experts of a mixture.
    """

    group_size: int | None = None
    activation_bits: int = 8
    module: str = ""


@dataclass(frozen=True)
class StoredMatrix:
    """A quantized weight of a checkpoint.

    shape: that of the weight when it is not quantized: [outputs, inputs], or [experts, outputs, inputs].
    tensors: the checkpoint's names of the tensors that it is stored in, by a name that the format chooses.
    """

    shape: Shape
    tensors: Mapping[str, str]


class CheckpointFormat(Protocol):
    """How a checkpoint stores its quantized weights. Both methods raise CheckpointError, naming the tensor."""

    def matrices(self, shapes: Mapping[str, Shape], read: Callable[[str], Tensor]) -> Mapping[str, StoredMatrix]:
        """The quantized weights among the tensors of the checkpoint, by the names that they would have unquantized.

        shapes: of all tensors, by name. read: gives a tensor, for small ones that say how others are stored. Tensors
        that belong to no matrix are loaded as they are.
        """
        ...

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> Any:
        """One weight: a `quire_kernels.quantized.QuantizedMatrix`, one for each expert if the shape has three sizes, a
        plain tensor, or an object of your own that has `shape`, `rows(index)`, `dequantized(dtype)` and
        `bind(ops, bias, dtype, gated, activation_bits)`, which returns a `quire_kernels.ops.BoundLinear`.

        tensors: by the names of `stored.tensors`, on the CPU; they may be views of the mapped file.
        """
        ...


@dataclass(frozen=True)
class Quantization:
    """A way to store a model's matrices in fewer bits. At least one of `linear` and `checkpoint` is set.

    linear: for `--quantization NAME`: picks or makes, from the chosen operations (`quire_kernels.select.Ops`), the
    function that binds a matrix, a `quire_kernels.ops.LinearOp`; called for every matrix of the blocks and the head.
    What it returns should have `unpacked`: then the original weight is freed.
    checkpoint: for checkpoints whose `quantization_config` has NAME as its `quant_method`: makes the format from that
    config. Raises CheckpointError for a config that it cannot read.
    supports: returns None, or the reason why it cannot run there.
    """

    name: str
    linear: Callable[[Any, QuantizationOptions], Any] | None = None
    checkpoint: Callable[[Mapping[str, Any]], CheckpointFormat] | None = None
    supports: Callable[[OpQuery], str | None] = lambda query: None
