"""Tensors that say they are on a GPU and are computed on the CPU, and a mode that watches what a GPU would do.

Everything of torch that code sees is as on a GPU: devices, indexing, copies, `torch.cuda`. An operation on tensors of
both devices fails. `FakeGpu.waits` has what makes the host wait for the device, as
`torch.cuda.set_sync_debug_mode` finds it on a real one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
MOVES = ("copy_", "_to_copy", "_copy_from")
"""Operations on tensors of two devices."""
BY_VALUE = ("nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "repeat_interleave", "equal")
"""Operations whose result's shape depends on values, or is read by the host."""


class GpuTensor(Tensor):
    """A tensor of the fake GPU. inner: its values, on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on the GPU in a thread without the mode")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of a GPU to numpy")

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def data_ptr(self) -> int:
        return self.inner.data_ptr()


class FakeGpu(TorchDispatchMode):
    """waits: what made the host wait, with the place of ours that asked for it. launches: operations, while kept."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self) -> None:
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.waits: list[str] = []
        self.launches: list[Any] | None = None
        self._paused, self._pinned, self._made = 0, set[int](), dict[int, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        ours = [each for each in leaves if isinstance(each, GpuTensor)]
        asked = kwargs.get("device")
        on_gpu = bool(ours) if asked is None else torch.device(asked).type == "cuda"
        pinned = kwargs.pop("pin_memory", False)
        if name == "copy_":
            on_gpu = isinstance(args[0], GpuTensor)
        if not self._paused:
            self._check(name, args, kwargs, leaves, on_gpu)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if name == "_to_copy" and on_gpu != bool(ours):
            found = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, found)
        known = {id(each.inner): each for each in ours}
        result = tree_map(lambda x: _outer(x, known, on_gpu), found)
        if pinned:
            self._pinned.add(result.untyped_storage().data_ptr())
        if self.launches is not None and not self._paused:
            self._keep(name, ours, result)
        return result

    def _check(self, name: str, args: Any, kwargs: Any, leaves: list[Tensor], on_gpu: bool) -> None:
        ours = [each for each in leaves if isinstance(each, GpuTensor)]
        host = [each for each in leaves if not isinstance(each, GpuTensor)]
        if name in MOVES:
            if ours and not on_gpu:
                target = args[0] if name == "copy_" else None
                kept = target is not None and self._is_pinned(target) and _non_blocking(name, args, kwargs)
                if not kept:
                    self.wait(f"{name} from the GPU")
            elif on_gpu and host and host[-1].dim():
                if not _non_blocking(name, args, kwargs):
                    self.wait(f"{name} to the GPU")
                kept = self.launches is None or self._is_pinned(host[-1])
                assert kept, f"a captured step reads memory that will be gone: {name}, {_place()}"
            return
        assert not ours or not any(each.dim() for each in host), f"{name} on tensors of both devices"
        if name == "_local_scalar_dense" and ours:
            self.wait("item")
        masks = [each for each in tree_leaves(args[1:]) if isinstance(each, GpuTensor) and each.dtype == torch.bool]
        if ours and (name in BY_VALUE or (name in ("index", "index_put_", "index_put") and masks and masks[0].dim())):
            self.wait(name)

    def wait(self, what: str) -> None:
        """Note that the host waits for the device."""
        if not self._paused:
            assert self.launches is None, f"the host waits in a captured step: {what}"
            self.waits.append(f"{what}: {_place()}")

    def _is_pinned(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._pinned

    def _keep(self, name: str, ours: list[GpuTensor], result: Any) -> None:
        """The operation with the shapes and addresses it reads; an address made before in this step by its number."""
        assert self.launches is not None
        used = []
        for each in ours:
            address = each.inner.untyped_storage().data_ptr()
            used.append((tuple(each.shape), self._made.get(address, address), each.inner.storage_offset()))
        read = {each.inner.untyped_storage().data_ptr() for each in ours}
        for each in tree_leaves(result):
            if isinstance(each, GpuTensor) and (address := each.inner.untyped_storage().data_ptr()) not in read:
                self._made[address] = -len(self.launches) - 1
        self.launches.append((name, tuple(used)))
        self._alive.append(result)

    def recorded(self, run: Callable[[], None]) -> list[Any]:
        """The operations of `run`, in which the host must not wait."""
        self.launches, self._made, self._alive = [], {}, list[Any]()
        try:
            run()
            return self.launches
        finally:
            self.launches, self._alive = None, []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is watched: a kernel would take the place of what is computed."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def kernel(self, function: Callable[..., Any], capturable: bool) -> Callable[..., Any]:
        """An op, or what binds one, that is a kernel on a GPU: what it does in torch is not watched."""
        return _Kernel(self, function, capturable)


class _Kernel:
    def __init__(self, gpu: FakeGpu, function: Any, capturable: bool) -> None:
        self._gpu, self._function, self.capturable = gpu, function, capturable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gpu, launches = self._gpu, self._gpu.launches
        with gpu.paused():
            found = self._function(*args, **kwargs)
        if launches is not None:
            tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, GpuTensor)]
            gpu._keep(getattr(self._function, "__name__", "kernel"), tensors, found)
        bound = callable(found) and not isinstance(found, Tensor)
        return _Kernel(gpu, found, self.capturable) if bound else found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._function, name)
        return _Kernel(self._gpu, found, True) if name == "on_device" else found


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, GpuTensor) else x


def _outer(x: Any, known: dict[int, GpuTensor], on_gpu: bool) -> Any:
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else GpuTensor(x) if on_gpu else x


def _non_blocking(name: str, args: Any, kwargs: Any) -> bool:
    given = args[2] if name == "copy_" and len(args) > 2 else kwargs.get("non_blocking", False)
    return bool(given)


def _place() -> str:
    """The innermost place in a package of ours."""
    places = [
        f"{each.filename.split('/quire')[-1]}:{each.lineno}"
        for each in traceback.extract_stack()
        if "/quire" in each.filename
    ]
    return places[-1] if places else "?"
