"""Plugin lora: adapters in PEFT's format (`peft_type` LORA), applied in addition to the base weights.

This package also holds the plugins ia3 (`peft_type` IA3), and lora-folder and lora-hub, which find adapters by name.

`peft` reads an adapter's folder and checks it against the model's `target_modules`, which gives `weights`. A runtime
(`lora_runtime`, `ia3_runtime`) packs these for the ops, keeps adapters in slots (`slot_allocator`), and binds in each
step which tokens use which slot. Its deltas on the modules of the model then apply the weights: the op `low_rank` on
projections, and those of `deltas` on everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import AdapterRuntime, Context, hookimpl

if TYPE_CHECKING:
    from quire_adapters.lora_runtime import LoraRuntime


def build(context: Context) -> LoraRuntime:
    """The runtime. torch is imported only now, so that listing plugins is fast."""
    from quire_adapters.lora_runtime import LoraRuntime

    return LoraRuntime(context)


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """LoRA, rsLoRA and DoRA, and the weights that PEFT may save whole in addition."""
    yield AdapterRuntime(name="lora", peft_types=frozenset({"LORA"}), build=build)
