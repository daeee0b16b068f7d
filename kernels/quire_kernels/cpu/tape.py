"""Tape: what a run of blocks does to a step, written down once, so that it can be computed in one call.

The blocks are called with a `Symbol` instead of a tensor, and with a `SymbolicForward`. The ops of this package write
an instruction for each call they get; what a symbol cannot do raises, and that block is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

from quire_kernels.cpu.layout import ACTIVE, GATED, PRODUCTS, Instruction, Op, PackedMatrix, View
from quire_kernels.cpu.symbolic_forward import AngleSymbol, PoolSymbol, SegmentsSymbol, SymbolicForward, Unrecordable
from quire_kernels.ops import ACTS


class Symbol:
    """A tensor of every step to come: [tokens, parts * width] or, if `headed`, [tokens, parts, width]."""

    def __init__(self, tape: Tape, buffer: int, offset: int, stride: int, parts: int, width: int, headed: bool) -> None:
        self.tape, self.buffer, self.offset, self.stride = tape, buffer, offset, stride
        self.parts, self.width, self.headed = parts, width, headed

    @property
    def view(self) -> View:
        """Where it lies."""
        return View(self.buffer, self.parts, self.offset, self.stride, self.width)

    @property
    def columns(self) -> int:
        """Elements of one token."""
        return self.parts * self.width

    def split(self, sizes: Sequence[int], dim: int = 0) -> tuple[Symbol, ...]:
        """Neighbouring columns; only of the last dimension."""
        if dim != -1 or self.headed or sum(sizes) != self.width:
            raise Unrecordable("only the last dimension of [tokens, width] can be split, into parts that make it up")
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(
            Symbol(self.tape, self.buffer, self.offset + start, self.stride, 1, size, False)
            for start, size in zip(starts, sizes, strict=True)
        )

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Symbol:
        """[tokens, heads * head_dim] as [tokens, heads, head_dim]."""
        if dim != -1 or self.headed or len(sizes) != 2 or sizes[0] != -1 or self.width % sizes[1]:
            raise Unrecordable("only [tokens, width] can be unflattened, by (-1, head_dim)")
        return Symbol(self.tape, self.buffer, self.offset, self.stride, self.width // sizes[1], sizes[1], True)

    def index_select(self, dim: int, index: Any) -> Symbol:
        """The tokens whose logits are wanted, [logit rows, width]; all that follows is about them only."""
        if dim != 0 or index is not SymbolicForward.logit_rows or self.headed:
            raise Unrecordable("only the logit rows can be selected, of [tokens, width]")
        return self.tape.select(self)

    def flatten(self, start_dim: int = 0) -> Symbol:
        """[tokens, heads, head_dim] as [tokens, heads * head_dim]."""
        if start_dim != 1:
            raise Unrecordable("only heads can be flattened")
        return Symbol(self.tape, self.buffer, self.offset, self.stride, 1, self.columns, False)

    def add_(self, other: Any) -> Symbol:
        """In place."""
        return self.tape.add(self, other, self)

    def __add__(self, other: Any) -> Symbol:
        return self.tape.add(self, other, self.tape.like(self))

    def __mul__(self, factor: Any) -> Symbol:
        if not isinstance(factor, int | float):
            raise Unrecordable("a symbol can be multiplied by a number only")
        return self.tape.write(Op.SCALE, [self.flatten(1)], self.tape.like(self), factor=factor)


class Tape:
    """Instructions, and the buffers they use: buffer 0 is what the first block is given."""

    def __init__(self, width: int) -> None:
        self.instructions: list[Instruction] = []
        self.widths = [width]
        self.angles: list[Any] = []
        self.stored: dict[int, View] = {}
        self.kept: list[Any] = []
        self.lanes = 0  # of adapters
        self.gone: set[int] = set()  # buffers that are not written after all
        self.first_few: int | None = None  # from this buffer on they hold selected tokens only

    def source(self) -> Symbol:
        """What the first block is given."""
        return Symbol(self, 0, 0, self.widths[0], 1, self.widths[0], False)

    def new(self, width: int) -> Symbol:
        """A buffer of its own, [tokens, width]."""
        self.widths.append(width)
        return Symbol(self, len(self.widths) - 1, 0, width, 1, width, False)

    def like(self, x: Symbol) -> Symbol:
        """A buffer of its own, of the shape of `x`."""
        out = self.new(x.columns)
        return out.unflatten(-1, (-1, x.width)) if x.headed else out

    def write(self, op: Op, inputs: Sequence[Any], out: Symbol, **fields: Any) -> Symbol:
        """One instruction; gives `out`."""
        if not all(isinstance(x, Symbol) and x.tape is self for x in inputs):
            raise Unrecordable("operands must come from the same program")
        if any(x.buffer in self.gone for x in inputs):
            raise Unrecordable("what a product gives cannot be read once an activation was joined to it")
        few = self.first_few is not None
        if few and op != Op.SELECT and any(x.buffer < (self.first_few or 0) for x in inputs):
            raise Unrecordable("all tokens cannot be combined with the selected ones")
        views = [x.view for x in inputs]
        views += [View()] * (3 - len(views))
        self.instructions.append(Instruction(op=op, inputs=(View * 3)(*views), out=out.view, few=int(few), **fields))
        return out

    def select(self, x: Symbol) -> Symbol:
        """The logit rows of `x`."""
        if self.first_few is not None:
            raise Unrecordable("tokens are selected once")
        out = self.new(x.width)
        self.first_few = out.buffer
        return self.write(Op.SELECT, [x], out)

    def is_whole(self, x: Symbol, width: int) -> bool:
        """Whether `x` is [tokens, width] in a buffer of its own, as the next block must find it."""
        return (
            x.tape is self
            and not x.headed
            and x.offset == 0
            and x.stride == x.width == width
            and x.buffer not in self.gone
        )

    def keep(self, tensor: Any, width: int) -> int:
        """The address of a weight [width], which lives as long as the program."""
        if tensor is None:
            return 0
        if tensor.shape != (width,) or not tensor.is_contiguous():
            raise Unrecordable(f"a weight [{width}] was expected, not {list(tensor.shape)}")
        self.kept.append(tensor)
        return int(tensor.data_ptr())

    def product(self, x: Symbol, matrix: Any, op: Op = Op.PRODUCT, room: int = 0, **fields: Any) -> Symbol:
        """x · weightᵀ + bias with a matrix that has `packed`, `inputs` and `bias`.

        room: columns that `op` needs beside them.
        """
        packed = packed_copy(matrix.packed)
        if x.headed or x.columns != matrix.inputs:
            raise Unrecordable(f"a matrix of {matrix.inputs} inputs cannot be applied to {x.columns} columns")
        bias = self.keep(matrix.bias, packed.outputs)
        self.kept.append(matrix)
        inputs = [x, self.new(room)] if room else [x]
        return self.write(op, inputs, self.new(packed.outputs), packed=packed, bias=bias, **fields)

    def low_rank(self, y: Symbol, x: Any, seats: Any, segments: Any) -> Symbol:
        """What the seated adapters of a projection do to y, in place."""
        if not isinstance(segments, SegmentsSymbol) or self.first_few is not None:
            raise Unrecordable("seats are changed by the segments of all tokens")
        if not isinstance(x, Symbol) or x.headed or y.headed or (x.width, y.width) != (seats.inputs, seats.outputs):
            raise Unrecordable(f"these seats take y [tokens, {seats.outputs}] and x [tokens, {seats.inputs}]")
        self.kept.append(seats)
        self.lanes = max(self.lanes, segments.lane + 1)
        return self.write(Op.LOW_RANK, [x, y], y, weight=addressof(seats.struct), layer=segments.lane)

    def add(self, x: Symbol, y: Any, out: Symbol) -> Symbol:
        """out = x + y."""
        if not isinstance(y, Symbol) or (y.headed, y.parts, y.width) != (x.headed, x.parts, x.width):
            raise Unrecordable("sums are of like shapes")
        return self.write(Op.ADD, [x.flatten(1), y.flatten(1)], out)

    def add_norm(self, x: Symbol, residual: Any, **fields: Any) -> Symbol:
        """residual += x; gives its norm."""
        if x.headed or not isinstance(residual, Symbol) or residual.headed or residual.width != x.width:
            raise Unrecordable("a residual stream has the shape of what is added to it, [tokens, width]")
        return self.write(Op.ADD_RMS_NORM, [x, residual], self.new(x.width), **fields)

    def store(
        self, q: Symbol | None, k: Symbol, v: Any, k_pool: Any, v_pool: Any, angles: int, interleaved: bool = False
    ) -> Symbol:
        """Turn `q` and `k` in place by `angles` (-1: by none), and store `k` and `v`."""
        self._need_all()
        layer = _layer_of(k_pool, v_pool)
        if not _like_heads(k, v):
            raise Unrecordable("keys and values must have heads of like shapes")
        if q is not None and not (q.headed and q.width == k.width):
            raise Unrecordable("queries must have heads as wide as those of keys")
        self.stored[layer] = View(0, k.parts, 0, 0, k.width)
        turned = q or Symbol(self, k.buffer, 0, 0, 0, k.width, True)
        fields = {"layer": layer, "angles": angles, "interleaved": int(interleaved)}
        return self.write(Op.ROTARY_WRITE, [turned, k, v], turned, **fields)

    def _need_all(self) -> None:
        if self.first_few is not None:
            raise Unrecordable("keys and values are those of all tokens, and some were selected")

    def attend(self, q: Symbol, k_pool: Any, v_pool: Any, **fields: Any) -> Symbol:
        """Attention to the pools of the layer that `store` was called for."""
        self._need_all()
        layer = _layer_of(k_pool, v_pool)
        kv = self.stored.get(layer)
        if kv is None or not q.headed or q.width != kv.width or q.parts % kv.parts:
            raise Unrecordable("queries with heads attend to the pool that keys were stored in")
        out = self.write(Op.ATTENTION, [q], self.like(q), layer=layer, **fields)
        self.instructions[-1].inputs[1] = kv
        return out

    def attend_rows(self, q: Symbol, k: Any, v: Any, **fields: Any) -> Symbol:
        """Attention to the keys and values of the step's own tokens."""
        self._need_all()
        if not (q.headed and _like_heads(k, v)) or q.width != k.width or q.parts % k.parts:
            raise Unrecordable("queries, keys and values must have heads of like shapes")
        return self.write(Op.ROW_ATTENTION, [q, k, v], self.like(q), **fields)

    def turn(self, q: Symbol, k: Any, angles: int, interleaved: bool) -> tuple[Symbol, Symbol]:
        """Turn `q` and `k` in place."""
        if not (q.headed and isinstance(k, Symbol) and k.headed and q.width == k.width):
            raise Unrecordable("queries must have heads as wide as those of keys")
        self.write(Op.ROTARY, [q, k], q, angles=angles, interleaved=int(interleaved))
        return q, k

    def angles_of(self, symbol: Any) -> int:
        """The number of a pair of cosines and sines."""
        if not isinstance(symbol, AngleSymbol):
            raise Unrecordable("cosines and sines must be those of the step")
        return symbol.number

    def gated_act(self, x: Symbol, act: str) -> Symbol:
        """act(first half) · second half."""
        if x.headed or x.width % 2:
            raise Unrecordable("a gated activation is of [tokens, 2 width]")
        joined = self._joined(x, act)
        return joined or self.write(Op.GATED_ACT, [x], self.new(x.width // 2), act=ACTS.index(act))

    def act(self, x: Symbol, act: str) -> Symbol:
        """act(x), in place: as part of the product that made `x`, if that was the instruction before."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or last.op not in PRODUCTS or last.gated or last.packed.halves or not _is_all(x, last.out):
            return self.write(Op.ACT, [x.flatten(1)], x, act=ACTS.index(act))
        joined = Instruction.from_buffer_copy(last)  # a copy: the block may turn out not to be recordable
        joined.gated, joined.act = ACTIVE, ACTS.index(act)
        self.instructions[-1] = joined
        return x

    def _joined(self, x: Symbol, act: str) -> Symbol | None:
        """The activation as part of the product that made `x`, if that was the instruction before."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or last.op not in PRODUCTS or last.gated or not last.packed.halves:
            return None
        if (last.out.buffer, last.out.width) != (x.buffer, x.width):
            return None
        out = self.new(x.width // 2)
        joined = Instruction.from_buffer_copy(last)  # a copy: the block may turn out not to be recordable
        joined.gated, joined.act, joined.out = GATED, ACTS.index(act), out.view
        self.instructions[-1] = joined
        self.gone.add(x.buffer)
        return out


def _is_all(x: Symbol, view: View) -> bool:
    """Whether `x` is what lies there, all of it."""
    return not x.headed and (x.buffer, x.offset, x.columns) == (view.buffer, view.offset, view.width)


def _like_heads(k: Any, v: Any) -> bool:
    """Whether these are keys and values of like shapes."""
    both = isinstance(k, Symbol) and isinstance(v, Symbol) and k.headed and v.headed
    return both and (k.parts, k.width) == (v.parts, v.width)


def _layer_of(k_pool: Any, v_pool: Any) -> int:
    """The block whose pools these are."""
    pools = isinstance(k_pool, PoolSymbol) and isinstance(v_pool, PoolSymbol)
    if not pools or k_pool.values or not v_pool.values or k_pool.layer != v_pool.layer:
        raise Unrecordable("keys and values belong into the pools of one layer")
    return int(k_pool.layer)


def packed_copy(packed: PackedMatrix) -> PackedMatrix:
    """The description of a matrix, for an instruction of its own."""
    return PackedMatrix.from_buffer_copy(packed)
