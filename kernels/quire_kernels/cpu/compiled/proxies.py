"""Proxies for tensors, a `ForwardBatch` and its fields, which blocks receive while they are traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from quire_kernels.cpu.structs import Op, TensorView

if TYPE_CHECKING:
    from quire_kernels.cpu.compiled.tracer import Tracer


class Untraceable(Exception):
    """A block did something for which programs have no instruction."""


class Proxy:
    """A tensor of every later step: [tokens, parts * width] or, if `headed`, [tokens, parts, width]."""

    def __init__(
        self, tracer: Tracer, buffer: int, offset: int, stride: int, parts: int, width: int, headed: bool
    ) -> None:
        self.tracer, self.buffer, self.offset, self.stride = tracer, buffer, offset, stride
        self.parts, self.width, self.headed = parts, width, headed

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch.cat(parts, -1) of the outputs of products, or of two tensors with heads."""
        if function is not torch.cat or kwargs or len(args) != 2 or args[1] != -1:
            raise Untraceable("of torch's functions only torch.cat of columns is recorded")
        tracer = args[0][0].tracer
        return tracer.join_parts(*args[0]) if args[0][0].headed else tracer.join(args[0])

    @property
    def view(self) -> TensorView:
        return TensorView(self.buffer, self.parts, self.offset, self.stride, self.width)

    @property
    def columns(self) -> int:
        """Elements of one token."""
        return self.parts * self.width

    def split(self, sizes: Sequence[int], dim: int = 0) -> tuple[Proxy, ...]:
        """Split into neighboring columns; only of the last dimension."""
        if dim != -1 or self.headed or sum(sizes) != self.width:
            raise Untraceable("only the last dimension of [tokens, width] can be split, and completely")
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(
            Proxy(self.tracer, self.buffer, self.offset + start, self.stride, 1, size, False)
            for start, size in zip(starts, sizes, strict=True)
        )

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Proxy:
        """[tokens, heads * head_dim] as [tokens, heads, head_dim]."""
        if dim != -1 or self.headed or len(sizes) != 2 or sizes[0] != -1 or self.width % sizes[1]:
            raise Untraceable("only [tokens, width] can be unflattened, by (-1, head_dim)")
        return Proxy(self.tracer, self.buffer, self.offset, self.stride, self.width // sizes[1], sizes[1], True)

    def __getitem__(self, key: Any) -> Proxy:
        """x[:, a:b]: some heads of [tokens, heads, head_dim]."""
        tokens, heads = key if isinstance(key, tuple) and len(key) == 2 else (None, None)
        if not self.headed or tokens != slice(None) or not isinstance(heads, slice):
            raise Untraceable("only neighboring heads of all tokens can be selected")
        start, stop, step = heads.indices(self.parts)
        if step != 1:
            raise Untraceable("only neighboring heads can be selected")
        offset = self.offset + start * self.width
        return Proxy(self.tracer, self.buffer, offset, self.stride, max(0, stop - start), self.width, True)

    def clamp(self, least: float, most: float) -> Proxy:
        """In a buffer of its own, between -most and most."""
        if least != -most:
            raise Untraceable("the bounds must have the same size")
        return self.tracer.write(Op.CLAMP, [self.flatten(1)], self.tracer.like(self), factor=most)

    def index_select(self, dim: int, index: Any) -> Proxy:
        """The tokens whose logits are computed, [logit rows, width]; later instructions work on them only."""
        if dim != 0 or index is not ProxyForward.logit_rows or self.headed:
            raise Untraceable("only the logit rows can be selected, of [tokens, width]")
        return self.tracer.select(self)

    def flatten(self, start_dim: int = 0) -> Proxy:
        """[tokens, heads, head_dim] as [tokens, heads * head_dim]."""
        if start_dim != 1:
            raise Untraceable("only heads can be flattened")
        return Proxy(self.tracer, self.buffer, self.offset, self.stride, 1, self.columns, False)

    def add_(self, other: Any) -> Proxy:
        return self.tracer.combine(Op.ADD, self, other, self)

    def __add__(self, other: Any) -> Proxy:
        return self.tracer.combine(Op.ADD, self, other, self.tracer.like(self))

    def __mul__(self, factor: Any) -> Proxy:
        if isinstance(factor, Proxy):
            return self.tracer.combine(Op.MULTIPLY, self, factor, self.tracer.like(self))
        if not isinstance(factor, int | float):
            raise Untraceable("a proxy can only be multiplied by a number or a proxy")
        return self.tracer.write(Op.SCALE, [self.flatten(1)], self.tracer.like(self), factor=factor)


class AngleProxy:
    """Cosines or sines of the step; `number` identifies the rotary embedding."""

    def __init__(self, number: int) -> None:
        self.number = number


class PoolProxy:
    """The KV-cache tensor of one block's keys or values."""

    def __init__(self, layer: int, values: bool) -> None:
        self.layer, self.values = layer, values


class _Pools:
    def __init__(self, values: bool) -> None:
        self._values = values

    def __getitem__(self, layer: int) -> PoolProxy:
        return PoolProxy(layer, self._values)


class _StepCacheProxy:
    """Proxy of `ForwardBatch.step_cache`: contains the angles of every rotary embedding, and nothing else."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __contains__(self, key: object) -> bool:
        return callable(getattr(key, "for_step", None)) and callable(getattr(key, "table", None))

    def __getitem__(self, key: Any) -> tuple[AngleProxy, AngleProxy]:
        if key not in self:
            raise Untraceable("only rotary angles are shared between blocks")
        if key not in self._tracer.angles:
            self._tracer.angles.append(key)
        number = self._tracer.angles.index(key)
        return AngleProxy(number), AngleProxy(number)


class _KvProxies:
    k, v = _Pools(False), _Pools(True)


class SegmentsProxy:
    """The segments of a step for the adapters of one runtime. runtime_index: number of the runtime."""

    def __init__(self, runtime_index: int) -> None:
        self.runtime_index = runtime_index


class RuntimesProxy:
    """What several runtimes bound, by runtime index."""

    def __contains__(self, runtime_index: object) -> bool:
        return isinstance(runtime_index, int)

    def __getitem__(self, runtime_index: int) -> SegmentsProxy:
        return SegmentsProxy(runtime_index)


class StateProxy:
    """One state tensor of a block; `number` is its place among those of the program."""

    def __init__(self, number: int) -> None:
        self.number = number


class _BlockStates:
    def __init__(self, tracer: Tracer, layer: int) -> None:
        self._tracer, self._layer = tracer, layer

    def __getitem__(self, index: int) -> StateProxy:
        key, states = (self._layer, index), self._tracer.states
        if key not in states:
            states.append(key)
        return StateProxy(states.index(key))


class _StateTensors:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __getitem__(self, layer: int) -> _BlockStates:
        return _BlockStates(self._tracer, layer)


class _StateProxies:
    """Proxy of `ForwardBatch.state`; a block takes its tensors by index, because their number is unknown here."""

    def __init__(self, tracer: Tracer) -> None:
        self.tensors = _StateTensors(tracer)


class ProxyForward:
    """Stands for the `ForwardBatch` of every later step, with adapters or without. A block that reads another field
    of it cannot be traced.
    """

    kv = _KvProxies()
    rows = slot_mapping = object()
    logit_rows = object()
    cross_attention = object()
    state_slots = object()

    def __init__(self, tracer: Tracer, adapters: SegmentsProxy | RuntimesProxy | None = None) -> None:
        self.step_cache = _StepCacheProxy(tracer)
        self.state = _StateProxies(tracer)
        self.adapters = adapters


def layer_of(k_pool: Any, v_pool: Any) -> int:
    """The layer that the two pools belong to."""
    pools = isinstance(k_pool, PoolProxy) and isinstance(v_pool, PoolProxy)
    if not pools or k_pool.values or not v_pool.values or k_pool.layer != v_pool.layer:
        raise Untraceable("keys and values must belong to the same layer")
    return int(k_pool.layer)
