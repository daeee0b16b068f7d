"""The C++ ops, with the names and signatures of the op table in `quire_kernels.ops`.

An op runs a program of one instruction. Called with proxies it instead records that instruction in their tracer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from quire_kernels.attention import HeadGroups, PositionBiases, Stripes
from quire_kernels.cpu.compiled.blocks import CompiledBlocks, compile_blocks
from quire_kernels.cpu.compiled.program import step_rows
from quire_kernels.cpu.compiled.proxies import Proxy, ProxyForward
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.linear.heads import HeadsLinear
from quire_kernels.cpu.linear.int8 import Int8Linear
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.linear.quantized import QuantizedLinear
from quire_kernels.cpu.linear.split_bf16 import SplitBf16Linear
from quire_kernels.cpu.low_rank import CpuAdapterSlots, StepSegments
from quire_kernels.cpu.moe import experts
from quire_kernels.cpu.moe.route import route
from quire_kernels.cpu.pages.biases import padded_biases
from quire_kernels.cpu.pages.read import read_pages
from quire_kernels.cpu.state import StateOps
from quire_kernels.cpu.structs import (
    Instruction,
    Op,
    StepStruct,
    TensorView,
    as_heads,
    as_rows,
    as_vector,
    pointers,
    view_of,
)
from quire_kernels.moe import BoundMoe, ExpertMlp, Routing
from quire_kernels.ops import ACTS, AttentionMetadata, BoundLinear
from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.quantized_pages import BITS
from quire_kernels.quantized_rows import QuantizedRows


class CpuOps(StateOps):
    """The ops of one compiled library. Pages have the layout of `csrc/attention/pages.hpp`."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def run(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        out: Tensor,
        pools: tuple[Tensor, Tensor] | None = None,
        slot_mapping: Tensor | None = None,
        rows: AttentionMetadata | None = None,
        tables: tuple[Tensor, Tensor] | None = None,
        segments: StepSegments | None = None,
        states: tuple[Tensor, Tensor] | None = None,
        **fields: Any,
    ) -> None:
        """Run one instruction on tensors [tokens, width] or [tokens, parts, width]; `fields` are the instruction's
        fields. states: a state tensor, and the slots of the rows.
        """
        tensors = [*inputs, out]
        views = [view_of(tensor, i) for i, tensor in enumerate(tensors)]
        inputs_of = (TensorView * 3)(*views[:-1], *([TensorView()] * (3 - len(inputs))))
        program = (Instruction * 1)(Instruction(op=op, inputs=inputs_of, out=views[-1], **fields))
        step = StepStruct(is_bf16=DTYPES[inputs[0].dtype], threads=torch.get_num_threads(), tokens=len(inputs[0]))
        arrays = [pointers(tensors)]
        step.buffers = addressof(arrays[0])
        if slot_mapping is not None:
            step.slot_mapping = slot_mapping.data_ptr()
        if rows is not None:
            step.rows = step_rows(rows)
        if pools is not None:
            arrays += [pointers([pool]) for pool in pools]
            step.k_pools, step.v_pools, step.page_size = addressof(arrays[-2]), addressof(arrays[-1]), pools[0].shape[1]
            step.kv_bits = BITS.get(pools[0].dtype, 0)
        if tables is not None:
            arrays += [pointers([table]) for table in tables]
            pairs = c_int64(tables[0].shape[-1])
            step.cos, step.sin, step.pairs = addressof(arrays[-2]), addressof(arrays[-1]), addressof(pairs)
        if segments is not None:
            arrays.append((c_void_p * 1)(addressof(segments)))
            step.segments = addressof(arrays[-1])
        if states is not None:
            arrays.append(pointers(states[:1]))
            step.states, step.state_slots = addressof(arrays[-1]), states[1].data_ptr()
        self.library.run(step, program)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if isinstance(x, Proxy):
            wide = int(weight.dtype == torch.float32)
            at = x.tracer.keep(weight, x.width)
            return x.tracer.write(Op.RMS_NORM, [x], x.tracer.like(x), weight=at, factor=eps, wide=wide)
        rows, out, weight = as_rows(x), torch.empty(x.shape, dtype=x.dtype), as_vector(weight, x.dtype)
        wide = int(weight.dtype == torch.float32)
        self.run(Op.RMS_NORM, [rows], out.view(rows.shape), weight=weight.data_ptr(), factor=eps, wide=wide)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if isinstance(x, Proxy):
            wide = int(weight.dtype == torch.float32)
            out = x.tracer.add_norm(x, residual, weight=x.tracer.keep(weight, x.width), factor=eps, wide=wide)
            return out, residual
        x, residual, weight = as_rows(x), as_rows(residual), as_vector(weight, x.dtype)
        wide, out = int(weight.dtype == torch.float32), torch.empty(x.shape, dtype=x.dtype)
        self.run(Op.ADD_RMS_NORM, [x, residual], out, weight=weight.data_ptr(), factor=eps, wide=wide)
        return out, residual

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        if isinstance(x, Proxy):
            weight_at, bias_at = (x.tracer.keep(t, x.width) for t in (weight, bias))
            return x.tracer.write(Op.LAYER_NORM, [x], x.tracer.like(x), weight=weight_at, bias=bias_at, factor=eps)
        rows, out = as_rows(x), torch.empty(x.shape, dtype=x.dtype)
        vectors = [None if t is None else t.to(x.dtype).contiguous() for t in (weight, bias)]
        weight_at, bias_at = (0 if t is None else t.data_ptr() for t in vectors)
        self.run(Op.LAYER_NORM, [rows], out.view(rows.shape), weight=weight_at, bias=bias_at, factor=eps)
        return out

    def rotary(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]:
        if isinstance(q, Proxy):
            return q.tracer.rotate(q, k, q.tracer.angles_of(cos), interleaved)  # type: ignore[return-value]
        q, k = as_heads(q), as_heads(k)
        self.run(Op.ROTARY, [q, k], q, tables=(cos.contiguous(), sin.contiguous()), interleaved=int(interleaved))
        return q, k

    def write_kv(self, k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
        if isinstance(k, Proxy):
            k.tracer.store(None, k, v, k_pool, v_pool, angles=-1)
            return
        k, v = as_heads(k), k[:, :0] if v is None else as_heads(v)  # no parts: no values
        v = v if v.shape[1] else v.new_empty(len(k), 0, 0)
        self.run(Op.ROTARY_WRITE, [k[:, :0], k, v], k, (k_pool, v_pool), slot_mapping, angles=-1)

    def rotary_write_kv(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        slot_mapping: Tensor,
        interleaved: bool = False,
    ) -> Tensor:
        if isinstance(q, Proxy):
            return q.tracer.store(q, k, v, k_pool, v_pool, q.tracer.angles_of(cos), interleaved)
        q, k, v = as_heads(q), as_heads(k), as_heads(v)
        tables = cos.contiguous(), sin.contiguous()
        self.run(
            Op.ROTARY_WRITE, [q, k, v], q, (k_pool, v_pool), slot_mapping, tables=tables, interleaved=int(interleaved)
        )
        return q

    def paged_attention(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        *,
        sinks: Tensor | None = None,
        slopes: Tensor | None = None,
        chunk: int | None = None,
        value_dim: int | None = None,
        biases: PositionBiases | None = None,
        stripes: Stripes | None = None,
        groups: HeadGroups | None = None,
    ) -> Tensor:
        (table, reach), sparse = padded_biases(biases), None if stripes is None else torch.tensor(stripes)
        fields: dict[str, Any] = {"factor": scale, "window": window or 0, "softcap": softcap or 0.0}
        group, before = groups or (0, 0)
        fields |= {"chunk": chunk or 0, "reach": reach, "group": group, "before": before}
        if isinstance(q, Proxy):
            fields["of_encoder"] = int(rows is ProxyForward.cross_attention)
            return q.tracer.attend(q, k_pool, v_pool, (sinks, slopes), value_dim, table, sparse, **fields)
        q = as_heads(q)
        heads = k_pool.shape[2]
        width = value_dim or (q.shape[2] if v_pool.dtype in BITS else v_pool.shape[3])
        out = torch.empty(*q.shape[:2], width, dtype=q.dtype)
        # C++ reads only the shapes of keys and values; values without heads are part of the keys
        kv = [torch.empty(0, heads, q.shape[2], dtype=q.dtype)]
        kv.append(torch.empty(0, heads if value_dim is None else 0, width, dtype=q.dtype))
        added = slopes if table is None else table
        kept = [None if each is None else each.float().contiguous() for each in (sinks, added)]
        addresses = [None if each is None else each.data_ptr() for each in (*kept, sparse)]
        fields |= dict(zip(("weight", "bias", "stripes"), addresses, strict=True))
        self.run(Op.ATTENTION, [q, *kv], out, (k_pool, v_pool), rows=rows, **fields)
        return out

    def read_kv(self, k_pool: Tensor, v_pool: Tensor, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        multiplies_bytes = dtype == torch.bfloat16 and "avx512_vnni" in self.library.isa.needs
        neighbors = 4 if multiplies_bytes else 4 // dtype.itemsize
        keys = read_pages(k_pool, slots, dtype, False, neighbors)
        return keys, read_pages(v_pool, slots, dtype, True, neighbors)

    def row_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        biases: PositionBiases | None = None,
    ) -> Tensor:
        table, reach = padded_biases(biases)
        fields: dict[str, Any] = {"factor": scale, "window": window or 0, "reach": reach}
        if isinstance(q, Proxy):
            return q.tracer.attend_rows(q, k, v, table, **fields)
        q, k, v = as_heads(q), as_heads(k), as_heads(v)
        out = torch.empty(q.shape, dtype=q.dtype)
        self.run(
            Op.ROW_ATTENTION, [q, k, v], out, rows=rows, bias=None if table is None else table.data_ptr(), **fields
        )
        return out

    def gated_act(self, gate_up: Tensor, act: str) -> Tensor:
        if isinstance(gate_up, Proxy):
            return gate_up.tracer.gated_act(gate_up, act)
        rows = gate_up.reshape(-1, gate_up.shape[-1])
        out = torch.empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2, dtype=gate_up.dtype)
        self.run(Op.GATED_ACT, [rows], out.view(len(rows), out.shape[-1]), act=ACTS.index(act))
        return out

    def act(self, x: Tensor, act: str) -> Tensor:
        if isinstance(x, Proxy):
            return x.tracer.act(x, act)
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty(x.shape, dtype=x.dtype)
        self.run(Op.ACT, [rows], out.view(rows.shape), act=ACTS.index(act))
        return out

    def linear(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None, gated: bool = False) -> PackedLinear:
        return PackedLinear.bind(self, weight, bias, gated)

    linear.takes_parts = True  # type: ignore[attr-defined]

    def linear_batched(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> BoundLinear:
        splits = weight.dtype == torch.float32 and self.library.isa.tiles
        return (SplitBf16Linear if splits else PackedLinear.bind)(self, weight, bias, gated)

    def linear_heads(self, weight: Tensor) -> HeadsLinear:
        return HeadsLinear(self, weight)

    def linear_int8(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Int8Linear:
        return Int8Linear.bind(self, weight, bias, gated)

    def linear_quantized(
        self,
        matrix: QuantizedMatrix | QuantizedRows,
        bias: Tensor | None,
        dtype: torch.dtype,
        gated: bool = False,
        activation_bits: int = 8,
    ) -> QuantizedLinear:
        return QuantizedLinear.bind(self, matrix, bias, dtype, gated, activation_bits)

    linear_quantized.packs_rows = True  # type: ignore[attr-defined]

    def route(self, logits: Tensor, routing: Routing, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return route(self, logits, routing, correction)

    def moe(
        self,
        up: Tensor | Sequence[BoundLinear],
        down: Tensor | Sequence[BoundLinear],
        mlp: ExpertMlp,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> BoundMoe:
        return experts.bind(self, up, down, mlp, up_bias, down_bias)

    def low_rank(
        self,
        inputs: int,
        slices: Sequence[tuple[int, int]],
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> CpuAdapterSlots:
        return CpuAdapterSlots(self, inputs, slices, slots, dtype)

    def fused_blocks(self, blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> CompiledBlocks:
        """Blocks that can be traced run together in one native call."""
        return compile_blocks(self.library, blocks, width)
