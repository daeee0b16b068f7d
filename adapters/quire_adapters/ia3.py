"""Plugin ia3: vectors that scale the inputs or outputs of projections, in PEFT's format (`peft_type` IA3).

arXiv 2205.05638. A vector [outputs, 1] scales the outputs of a matrix, a vector [1, inputs] its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import AdapterRuntime, Context, hookimpl

if TYPE_CHECKING:
    from quire_adapters.ia3_runtime import Ia3Runtime


def build(context: Context) -> Ia3Runtime:
    """The runtime. torch is imported only now, so that listing plugins is fast."""
    from quire_adapters.ia3_runtime import Ia3Runtime

    return Ia3Runtime(context)


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """IA³: keys, values and other matrices of the blocks, scaled channel by channel."""
    yield AdapterRuntime(name="ia3", peft_types=frozenset({"IA3"}), build=build)
