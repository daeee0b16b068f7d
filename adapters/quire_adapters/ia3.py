"""Plugin ia3: vectors that rescale what projections read or give, as PEFT writes them (`peft_type` IA3).

arXiv 2205.05638. A vector [outputs, 1] scales what a matrix gives, a vector [1, inputs] what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.hookspecs import hookimpl
from quire.records import AdapterRuntime, Context

if TYPE_CHECKING:
    from quire_adapters.rescaling import Rescaling


def build(context: Context) -> Rescaling:
    """The runtime; torch is imported now and not when plugins are listed."""
    from quire_adapters.rescaling import Rescaling

    return Rescaling(context)


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """Keys, values and whatever other matrices of the blocks, scaled channel by channel."""
    yield AdapterRuntime(name="ia3", kinds=frozenset({"IA3"}), build=build)
