"""The Triton ops in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from quire_kernels.triton_gpu.ops import MODULES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
PACKAGE = "quire_kernels.triton_gpu."
KEPT = f"{PACKAGE}ops"
"""What offers the ops has no kernels, and other modules hold its classes."""


class TritonOps:
    """The ops by name, as modules of other implementations have them."""

    def __getattr__(self, op: str) -> Any:
        if op not in MODULES:
            raise AttributeError(op)
        return getattr(importlib.import_module(MODULES[op]), op)


def triton_ops(interpreted: bool = DEVICE == "cpu") -> Iterator[TritonOps]:
    """The ops from modules read anew: whether kernels are interpreted is decided when they are read.

    Triton's own functions are read first, as they are in a process that imported it for something else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        importlib.import_module("triton.language")
        if interpreted:
            patch.setenv("TRITON_INTERPRET", "1")
            loops_over_loaded_bounds(patch)
            interpret_the_language(patch)
        for name in [name for name in sys.modules if name.startswith(PACKAGE) and name != KEPT]:
            patch.delitem(sys.modules, name)
        package = importlib.import_module(PACKAGE[:-1])  # what `from package import module` finds before sys.modules
        for name in [name for name in vars(package) if isinstance(vars(package)[name], ModuleType) and name != "ops"]:
            patch.delattr(package, name)
        yield TritonOps()
        for name in [name for name in sys.modules if name.startswith(PACKAGE) and name != KEPT]:
            sys.modules.pop(name)


def loops_over_loaded_bounds(patch: pytest.MonkeyPatch) -> None:
    """Let `range` take bounds that a kernel computed: the interpreter holds them as arrays of one element, which numpy
    no longer converts.
    """
    interpreter = importlib.import_module("triton.runtime.interpreter")
    original = interpreter._patch_lang_tensor

    class Scope:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def set_attr(self, owner: Any, name: str, value: Any) -> None:
            index = (lambda tensor: int(tensor.handle.data.item())) if name == "__index__" else value
            self.scope.set_attr(owner, name, index)

    patch.setattr(interpreter, "_patch_lang_tensor", lambda tensor, scope: original(tensor, Scope(scope)))


def interpret_the_language(patch: pytest.MonkeyPatch) -> None:
    """Let kernels call functions of `triton.language` that are kernels themselves, such as `tl.sum`: they were read
    before. What the interpreter replaces for these, in `triton.language.core`, it does not restore.
    """
    language, standard, core = (
        importlib.import_module(f"triton.language{name}") for name in ("", ".standard", ".core")
    )
    for name, member in list(vars(core).items()):
        patch.setattr(core, name, member)
    compiled = importlib.import_module("triton.runtime.jit").JITFunction
    interpreted = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    for module in (language, standard):
        for name, function in list(vars(module).items()):
            if isinstance(function, compiled):
                patch.setattr(module, name, interpreted(function.fn))
