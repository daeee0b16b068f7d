"""A load beside the steps of other models."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress

from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.library import load


def beside_steps(on_cpu: bool) -> AbstractContextManager[None]:
    """Around a load: steps of other models on the CPU do not give it the GIL while they compute."""
    with suppress(BuildError):  # then steps run without the compiled library
        if on_cpu:
            return load().loading()
    return nullcontext()
