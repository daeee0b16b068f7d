"""The ops that keep states, in C++; `CpuOps` inherits them. `csrc/state` is the other side."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy, ProxyForward, StateProxy, Untraceable
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.structs import Op, ScanParams
from quire_kernels.ops import ACTS, AttentionMetadata


class StateOps:
    """The ops of `quire_kernels.state.ops`. Called with proxies, an op records its instruction."""

    def run(self, op: Op, inputs: Sequence[Tensor], out: Tensor, **fields: Any) -> None:
        """Run one instruction, see `quire_kernels.cpu.ops.CpuOps.run`."""
        raise NotImplementedError

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        act: str = "identity",
    ) -> Tensor:
        taps, channels = weight.shape
        fields: dict[str, Any] = {"window": taps, "act": ACTS.index(act)}
        if isinstance(x, Proxy):
            tracer = x.tracer
            _check(tracer, not x.headed and x.width == channels, rows, slots)
            fields |= {"weight": _kept(tracer, weight), "bias": _kept(tracer, bias), "layer": _number(state)}
            return tracer.write(Op.CAUSAL_CONV, [x], tracer.new(channels), **fields)  # type: ignore[return-value]
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        fields |= {"weight": weight.data_ptr(), "bias": 0 if bias is None else bias.data_ptr()}
        self.run(Op.CAUSAL_CONV, [x], out, rows=rows, states=(state, slots), **fields)
        return out

    def gated_delta(
        self,
        qkv: Tensor,
        decay: Tensor,
        weight: Tensor,
        rate: Tensor,
        bias: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        dims: tuple[int, int],
        factor: float = 1.0,
    ) -> Tensor:
        params = _params(qkv, rate, bias, None, dims, factor=factor)
        return self._scan(Op.GATED_DELTA, [qkv, decay, weight], params, (rate, bias), (state, slots), rows)

    def ssd_scan(
        self,
        xbc: Tensor,
        step: Tensor,
        rate: Tensor,
        bias: Tensor,
        skip: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        dims: tuple[int, int],
        limits: tuple[float, float] = (0.0, float("inf")),
    ) -> Tensor:
        params = _params(xbc, rate, bias, skip, dims, low=limits[0], high=limits[1])
        return self._scan(Op.SSD_SCAN, [xbc, step], params, (rate, bias, skip), (state, slots), rows)

    def _scan(
        self,
        op: Op,
        inputs: list[Tensor],
        params: ScanParams,
        vectors: tuple[Tensor, ...],
        states: tuple[Tensor, Tensor],
        rows: AttentionMetadata,
    ) -> Tensor:
        heads, width, x = params.heads, params.value_dim, inputs[0]
        if isinstance(x, Proxy):
            tracer = x.tracer
            _check(tracer, not any(getattr(y, "headed", True) for y in inputs), rows, states[1])
            tracer.kept += [params, *vectors]
            out = tracer.new(heads * width).unflatten(-1, (-1, width))
            return tracer.write(op, inputs, out, weight=addressof(params), layer=_number(states[0]))  # type: ignore[return-value]
        inputs = [y if y.stride(-1) == 1 else y.contiguous() for y in inputs]
        found = torch.empty(len(x), heads, width, dtype=x.dtype)
        self.run(op, inputs, found, rows=rows, states=states, weight=addressof(params))
        return found

    def selective_scan(
        self,
        x: Tensor,
        step: Tensor,
        b: Tensor,
        c: Tensor,
        rate: Tensor,
        skip: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
    ) -> Tensor:
        inputs = [step, b, c]
        if isinstance(x, Proxy):
            tracer = x.tracer
            _check(tracer, not any(getattr(y, "headed", True) for y in (x, *inputs)), rows, slots)
            fields = {"weight": _kept(tracer, rate), "bias": _kept(tracer, skip), "layer": _number(state)}
            return tracer.write(Op.SELECTIVE_SCAN, inputs, x, window=len(rate), **fields)  # type: ignore[return-value]
        x, *inputs = [y if y.stride(-1) == 1 else y.contiguous() for y in (x, *inputs)]
        fields = {"weight": rate.data_ptr(), "bias": skip.data_ptr(), "window": len(rate)}
        self.run(Op.SELECTIVE_SCAN, inputs, x, rows=rows, states=(state, slots), **fields)
        return x

    def gated_rms_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, act: str = "silu", gate_first: bool = False
    ) -> Tensor:
        wide = int(weight.dim() == 2)
        fields: dict[str, Any] = {"factor": eps, "act": ACTS.index(act), "gated": int(gate_first), "wide": wide}
        if isinstance(x, Proxy):
            if not isinstance(gate, Proxy) or (x.headed, x.parts, x.width) != (gate.headed, gate.parts, gate.width):
                raise Untraceable("a gate has the shape of what it gates")
            at = _kept(x.tracer, weight)
            return x.tracer.write(Op.GATED_RMS_NORM, [x, gate], x.tracer.like(x), weight=at, **fields)  # type: ignore[return-value]
        x, gate = (y if y.stride(-1) == 1 and y.stride(1) == y.shape[2] else y.contiguous() for y in (x, gate))
        out = torch.empty(x.shape, dtype=x.dtype)
        self.run(Op.GATED_RMS_NORM, [x, gate], out, weight=weight.data_ptr(), **fields)
        return out


def _params(
    joined: Tensor,
    rate: Tensor,
    bias: Tensor,
    skip: Tensor | None,
    dims: tuple[int, int],
    factor: float = 1.0,
    low: float = 0.0,
    high: float = 0.0,
) -> ScanParams:
    """Sizes of a scan over `joined` [tokens, 2 key heads · key_dim + heads · value_dim]."""
    (key_dim, value_dim), heads = dims, len(rate)
    width = joined.width if isinstance(joined, Proxy) else joined.shape[-1]
    return ScanParams(
        rate=rate.data_ptr(),
        bias=bias.data_ptr(),
        skip=0 if skip is None else skip.data_ptr(),
        heads=heads,
        key_heads=(width - heads * value_dim) // (2 * key_dim),
        key_dim=key_dim,
        value_dim=value_dim,
        factor=factor,
        low=low,
        high=high,
        by_channel=int(len(bias) > heads),
    )


def _kept(tracer: Tracer, weight: Tensor | None) -> int:
    """The address of a float32 weight that lives as long as the program; 0 for None."""
    if weight is None:
        return 0
    if weight.dtype != torch.float32 or not weight.is_contiguous():
        raise Untraceable("weights of states are contiguous and in float32")
    tracer.kept.append(weight)
    return weight.data_ptr()


def _number(state: Any) -> int:
    if not isinstance(state, StateProxy):
        raise Untraceable("states must come from the step")
    return state.number


def _check(tracer: Tracer, shapes: bool, rows: Any, slots: Any) -> None:
    """Raise Untraceable unless an op works on all tokens of the step's own rows."""
    own = rows is ProxyForward.rows and slots is ProxyForward.state_slots
    if not shapes or not own or tracer.first_selected is not None:
        raise Untraceable("states are advanced by all tokens of a step, [tokens, width]")
