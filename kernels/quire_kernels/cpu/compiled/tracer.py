"""Traces what a run of blocks does in a step as a list of instructions, which C++ then runs in one call.

The blocks are called with a `Proxy` instead of a tensor and with a `ProxyForward`. The ops of `quire_kernels.cpu`
record an instruction for each call. Whatever a proxy cannot represent raises `Untraceable`, and that block is not
compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch

from quire_kernels.cpu.compiled.proxies import AngleProxy, Proxy, SegmentsProxy, Untraceable, layer_of
from quire_kernels.cpu.structs import ACTIVE, GATED, PRODUCTS, Instruction, Op, TensorView, packed_copy
from quire_kernels.ops import ACTS


class Tracer:
    """Instructions and the buffers they use. Buffer 0 is the input of the first block."""

    def __init__(self, width: int) -> None:
        self.instructions: list[Instruction] = []
        self.widths = [width]
        self.angles: list[Any] = []
        self.stored: dict[int, tuple[TensorView, TensorView]] = {}  # shapes of the keys and values of a layer
        self.states: list[tuple[int, int]] = []  # layer and index of each state tensor
        self.kept: list[Any] = []
        self.runtimes = 0  # number of adapter runtimes
        self.replaced: set[int] = set()  # buffers whose instruction was fused away
        self.first_selected: int | None = None  # buffers from this one on hold selected tokens only

    def source(self) -> Proxy:
        """The input of the first block."""
        return Proxy(self, 0, 0, self.widths[0], 1, self.widths[0], False)

    def new(self, width: int) -> Proxy:
        """A new buffer, [tokens, width]."""
        self.widths.append(width)
        return Proxy(self, len(self.widths) - 1, 0, width, 1, width, False)

    def like(self, x: Proxy) -> Proxy:
        """A new buffer of the shape of `x`."""
        out = self.new(x.columns)
        return out.unflatten(-1, (-1, x.width)) if x.headed else out

    def write(self, op: Op, inputs: Sequence[Any], out: Proxy, **fields: Any) -> Proxy:
        """Record one instruction; returns `out`."""
        if not all(isinstance(x, Proxy) and x.tracer is self for x in inputs):
            raise Untraceable("operands must come from the same program")
        if any(x.buffer in self.replaced for x in inputs):
            raise Untraceable("a product's output cannot be read after an activation was fused into it")
        selected = self.first_selected is not None
        if selected and op != Op.SELECT and any(x.buffer < (self.first_selected or 0) for x in inputs):
            raise Untraceable("all tokens cannot be combined with selected tokens")
        views = [x.view for x in inputs]
        views += [TensorView()] * (3 - len(views))
        self.instructions.append(
            Instruction(op=op, inputs=(TensorView * 3)(*views), out=out.view, selected=int(selected), **fields)
        )
        return out

    def select(self, x: Proxy) -> Proxy:
        """Record the selection of the logit rows of `x`."""
        if self.first_selected is not None:
            raise Untraceable("tokens are selected once")
        out = self.new(x.width)
        self.first_selected = out.buffer
        return self.write(Op.SELECT, [x], out)

    def is_whole(self, x: Proxy, width: int) -> bool:
        """Whether `x` is [tokens, width] in a buffer of its own, as the next block expects."""
        return (
            x.tracer is self
            and not x.headed
            and x.offset == 0
            and x.stride == x.width == width
            and x.buffer not in self.replaced
        )

    def keep(self, tensor: Any, width: int) -> int:
        """The address of a weight [width], which is kept alive with the program; 0 for None."""
        if tensor is None:
            return 0
        if tensor.shape != (width,) or not tensor.is_contiguous():
            raise Untraceable(f"a weight [{width}] was expected, not {list(tensor.shape)}")
        self.kept.append(tensor)
        return int(tensor.data_ptr())

    def product(self, x: Proxy, matrix: Any, op: Op = Op.PRODUCT, scratch: int = 0, **fields: Any) -> Proxy:
        """x · weightᵀ + bias with a matrix that has `packed`, `inputs` and `bias`.

        scratch: columns of memory that `op` needs beside its inputs.
        """
        packed = packed_copy(matrix.packed)
        if x.headed or x.columns != matrix.inputs:
            raise Untraceable(f"a matrix of {matrix.inputs} inputs cannot be applied to {x.columns} columns")
        bias = self.keep(matrix.bias, packed.outputs)
        self.kept.append(matrix)
        inputs = [x, self.new(scratch)] if scratch else [x]
        return self.write(op, inputs, self.new(packed.outputs), packed=packed, bias=bias, **fields)

    def join(self, parts: Sequence[Any]) -> Proxy:
        """Let the products that made `parts`, the last instructions, write side by side into one buffer."""
        out, at, first = self.new(sum(part.columns for part in parts)), 0, len(self.instructions) - len(parts)
        for i, part in enumerate(parts, first):
            last = self.instructions[i]
            if last.op not in PRODUCTS or last.gated or not _is_all(part, last.out):
                raise Untraceable("only the outputs of the previous products can be joined")
            moved = Instruction.from_buffer_copy(last)  # a copy, because tracing of the block may still fail
            moved.out = TensorView(out.buffer, 1, at, out.stride, part.width)
            self.instructions[i] = moved
            self.replaced.add(part.buffer)
            at += part.width
        return out

    def join_parts(self, x: Proxy, y: Any) -> Proxy:
        """The heads of `x` and of `y` side by side; one of them may have a single head for all."""
        if not (isinstance(y, Proxy) and x.headed and y.headed and 1 in (x.parts, y.parts, 1 + x.parts - y.parts)):
            raise Untraceable("only tensors with equally many heads, or one of them with one, can be joined")
        out = self.new(max(x.parts, y.parts) * (x.width + y.width)).unflatten(-1, (-1, x.width + y.width))
        return self.write(Op.JOIN_PARTS, [x, y], out)

    def product_heads(self, x: Proxy, matrices: Any) -> Proxy:
        """Record the product of each head with its own matrix, of `matrices` with `packed`, `heads` and sizes."""
        if not x.headed or (x.parts, x.width) != (matrices.heads, matrices.inputs):
            raise Untraceable(f"these matrices expect [tokens, {matrices.heads}, {matrices.inputs}]")
        self.kept.append(matrices)
        out = self.new(matrices.heads * matrices.outputs).unflatten(-1, (-1, matrices.outputs))
        return self.write(Op.PRODUCT_HEADS, [x], out, packed=packed_copy(matrices.packed))

    def low_rank(self, y: Proxy, x: Any, slots: Any, segments: Any) -> Proxy:
        """Apply the adapters of a projection to y, in place."""
        if not isinstance(segments, SegmentsProxy) or self.first_selected is not None:
            raise Untraceable("adapters are applied to all tokens, by their segments")
        if not isinstance(x, Proxy) or x.headed or y.headed or (x.width, y.width) != (slots.inputs, slots.outputs):
            raise Untraceable(f"these slots expect y [tokens, {slots.outputs}] and x [tokens, {slots.inputs}]")
        self.kept.append(slots)
        self.runtimes = max(self.runtimes, segments.runtime_index + 1)
        if self._join_adapters(y, x, slots, segments.runtime_index):
            return y
        return self.write(Op.LOW_RANK, [x, y], y, weight=addressof(slots.struct), layer=segments.runtime_index)

    def _join_adapters(self, y: Proxy, x: Proxy, slots: Any, runtime_index: int) -> bool:
        """Let the product that made `y` of `x` take the adapters as terms of its sums; whether it can."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or last.op != Op.PRODUCT or last.gated or not slots.joins(last.packed):
            return False
        if not (_is_all(y, last.out) and _is_all(x, last.inputs[0])):
            return False
        shrink = Instruction(op=Op.SHRINK, inputs=last.inputs, weight=addressof(slots.struct), layer=runtime_index)
        product = Instruction.from_buffer_copy(last)  # a copy, because tracing of the block may still fail
        product.shrinks += 1
        self.instructions[-1:] = [shrink, product]
        return True

    def combine(self, op: Op, x: Proxy, y: Any, out: Proxy) -> Proxy:
        """Record out = x + y or x · y; a factor y may have one column, for all of x."""
        scales = op == Op.MULTIPLY and isinstance(y, Proxy) and y.columns == 1
        if not isinstance(y, Proxy) or not (scales or (y.headed, y.parts, y.width) == (x.headed, x.parts, x.width)):
            raise Untraceable("only tensors of the same shape can be added or multiplied")
        return self.write(op, [x.flatten(1), y.flatten(1)], out)

    def add_norm(self, x: Proxy, residual: Any, **fields: Any) -> Proxy:
        """Record residual += x; returns its norm."""
        if x.headed or not isinstance(residual, Proxy) or residual.headed or residual.width != x.width:
            raise Untraceable("a residual stream must have the shape of its addend, [tokens, width]")
        return self.write(Op.ADD_RMS_NORM, [x, residual], self.new(x.width), **fields)

    def store(
        self, q: Proxy | None, k: Proxy, v: Any, k_pool: Any, v_pool: Any, angles: int, interleaved: bool = False
    ) -> Proxy:
        """Rotate `q` and `k` in place by `angles` (-1: no rotation), and store `k` and, unless it is None, `v`."""
        self._need_all()
        layer = layer_of(k_pool, v_pool)
        if not k.headed or not (v is None or (isinstance(v, Proxy) and v.headed and v.parts == k.parts)):
            raise Untraceable("keys and values must have equally many heads")
        if q is not None and not (q.headed and q.width == k.width):
            raise Untraceable("queries and keys must have the same head dimension")
        keys = TensorView(0, k.parts, 0, 0, k.width)
        self.stored[layer] = keys, TensorView() if v is None else TensorView(0, v.parts, 0, 0, v.width)
        rotated = q or Proxy(self, k.buffer, 0, 0, 0, k.width, True)
        fields = {"layer": layer, "angles": angles, "interleaved": int(interleaved)}
        return self.write(Op.ROTARY_WRITE, [rotated, k] if v is None else [rotated, k, v], rotated, **fields)

    def _need_all(self) -> None:
        if self.first_selected is not None:
            raise Untraceable("attention needs the keys and values of all tokens, but only some are selected")

    def attend(
        self,
        q: Proxy,
        k_pool: Any,
        v_pool: Any,
        by_head: Sequence[Any] = (None, None),
        value_dim: int | None = None,
        biases: Any = None,
        stripes: Any = None,
        **fields: Any,
    ) -> Proxy:
        """Attention to the KV cache of a layer that `store` was called for. by_head: sinks and slopes. biases: in place
        of slopes, as `quire_kernels.cpu.pages.biases` pads them. stripes: int64 [5].
        """
        self._need_all()
        layer = layer_of(k_pool, v_pool)
        keys, values = self.stored.get(layer, (None, None))
        if keys is None or values is None or not q.headed or q.width != keys.width:
            raise Untraceable("queries must have heads, and attend to a layer whose keys were stored")
        if q.parts % keys.parts and not fields["group"]:
            raise Untraceable("key-value heads must have equal numbers of query heads")
        if value_dim is not None:
            values = TensorView(0, 0, 0, 0, value_dim)  # no parts: they are part of the keys
        if any(each is not None and each.dtype != torch.float32 for each in by_head):
            raise Untraceable("sinks and slopes must be float32")
        sinks, slopes = (self.keep(each, q.parts) for each in by_head)
        slopes = slopes if biases is None else self.keep(biases, biases.numel())
        out = self.new(q.parts * values.width).unflatten(-1, (-1, values.width))
        fields |= {"weight": sinks, "bias": slopes, "stripes": self.keep(stripes, 5)}
        self.write(Op.ATTENTION, [q], out, layer=layer, **fields)
        self.instructions[-1].inputs[1], self.instructions[-1].inputs[2] = keys, values
        return out

    def attend_rows(self, q: Proxy, k: Any, v: Any, biases: Any = None, **fields: Any) -> Proxy:
        """Attention to the keys and values of the step's own tokens."""
        self._need_all()
        if not (q.headed and _have_equal_heads(k, v)) or q.width != k.width or q.parts % k.parts:
            raise Untraceable("queries, keys and values must have heads of the same shape")
        bias = 0 if biases is None else self.keep(biases, biases.numel())
        return self.write(Op.ROW_ATTENTION, [q, k, v], self.like(q), bias=bias, **fields)

    def rotate(self, q: Proxy, k: Any, angles: int, interleaved: bool) -> tuple[Proxy, Proxy]:
        """Rotate `q` and `k` in place."""
        if not (q.headed and isinstance(k, Proxy) and k.headed and q.width == k.width):
            raise Untraceable("queries and keys must have the same head dimension")
        self.write(Op.ROTARY, [q, k], q, angles=angles, interleaved=int(interleaved))
        return q, k

    def angles_of(self, proxy: Any) -> int:
        """The number of a rotary embedding's cosines and sines."""
        if not isinstance(proxy, AngleProxy):
            raise Untraceable("cosines and sines must come from the step")
        return proxy.number

    def gated_act(self, x: Proxy, act: str) -> Proxy:
        """act(first half) · second half."""
        if x.headed or x.width % 2:
            raise Untraceable("a gated activation needs [tokens, 2 width]")
        fused = self._fused(x, act)
        return fused or self.write(Op.GATED_ACT, [x], self.new(x.width // 2), act=ACTS.index(act))

    def act(self, x: Proxy, act: str) -> Proxy:
        """act(x) in place, fused into the product that made `x` if that was the previous instruction."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or last.op not in PRODUCTS or last.gated or last.packed.halves or not _is_all(x, last.out):
            return self.write(Op.ACT, [x.flatten(1)], x, act=ACTS.index(act))
        fused = Instruction.from_buffer_copy(last)  # a copy, because tracing of the block may still fail
        fused.gated, fused.act = ACTIVE, ACTS.index(act)
        self.instructions[-1] = fused
        return x

    def _fused(self, x: Proxy, act: str) -> Proxy | None:
        """The activation fused into the product that made `x`, or None if that was not the previous instruction."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or last.op not in PRODUCTS or last.gated or not last.packed.halves:
            return None
        if (last.out.buffer, last.out.width) != (x.buffer, x.width):
            return None
        out = self.new(x.width // 2)
        fused = Instruction.from_buffer_copy(last)  # a copy, because tracing of the block may still fail
        fused.gated, fused.act, fused.out = GATED, ACTS.index(act), out.view
        self.instructions[-1] = fused
        self.replaced.add(x.buffer)
        return out


def _is_all(x: Proxy, view: TensorView) -> bool:
    """Whether `x` covers the whole view."""
    return not x.headed and (x.buffer, x.offset, x.columns) == (view.buffer, view.offset, view.width)


def _have_equal_heads(k: Any, v: Any) -> bool:
    """Whether k and v have heads of the same shape."""
    both = isinstance(k, Proxy) and isinstance(v, Proxy) and k.headed and v.headed
    return both and (k.parts, k.width) == (v.parts, v.width)
