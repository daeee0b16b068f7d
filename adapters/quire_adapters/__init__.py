"""Plugin lora: adapters as PEFT writes them (`peft_type` LORA), at work beside the base weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.hookspecs import hookimpl
from quire.records import AdapterRuntime, Context

if TYPE_CHECKING:
    from quire_adapters.runtime import Lora


def build(context: Context) -> Lora:
    """The runtime; torch is imported now and not when plugins are listed."""
    from quire_adapters.runtime import Lora

    return Lora(context)


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """Low-rank adapters: LoRA, rsLoRA, DoRA, and the matrices that may be saved whole beside them."""
    yield AdapterRuntime(name="lora", kinds=frozenset({"LORA"}), build=build)
