"""Plugin prompt-tuning: virtual tokens before the prompt, in PEFT's format: prompt tuning, P-tuning and prefix tuning.

arXiv 2104.08691, 2103.10385, 2101.00190. Rows of embeddings, or keys and values for every layer, take the first
positions of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import AdapterRuntime, Context, hookimpl
from quire_adapters.peft.virtual_tokens import KINDS

if TYPE_CHECKING:
    from quire_adapters.prompt_tuning_runtime import PromptTuningRuntime


def build(context: Context) -> PromptTuningRuntime:
    """The runtime. torch is imported only now, so that listing plugins is fast."""
    from quire_adapters.prompt_tuning_runtime import PromptTuningRuntime

    return PromptTuningRuntime(context)


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """Prompt tuning and P-tuning (rows of embeddings), and prefix tuning (keys and values)."""
    yield AdapterRuntime(name="prompt-tuning", peft_types=KINDS, build=build)
