"""Proxies for a `ForwardBatch` and its fields, which blocks receive while they are traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire_kernels.cpu.compiled.tracer import Tracer


class Untraceable(Exception):
    """A block did something for which programs have no instruction."""


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
