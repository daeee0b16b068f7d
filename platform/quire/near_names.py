"""The known name that an unknown one probably means: of a setting, a flag, a YAML key, a Python argument.

First the names of vLLM's settings that stand for the same thing here under another name, then the closest spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

RENAMED: Mapping[str, str] = {
    "block_size": "page_size",
    "convert": "task",
    "guided_decoding_backend": "structured_outputs_backend",
    "io_processor_plugin": "plugins",
    "kv_offloading_size": "swap_space",
    "logits_processors": "plugins",
    "lora_path": "lora_modules",
    "max_seq_len": "max_model_len",
    "max_total_tokens": "max_model_len",
    "mem_fraction_static": "gpu_memory_utilization",
    "middleware": "plugins",
    "model_path": "model",
    "num_gpu_blocks": "num_pages",
    "num_gpu_blocks_override": "num_pages",
    "override_pooler_config": "pooling",
    "pooler_config": "pooling",
    "pooling_type": "pooling",
    "preemption_mode": "preemption",
    "reasoning_parser_plugin": "plugins",
    "runner": "task",
    "scheduler_cls": "scheduling_policy",
    "structured_outputs_config": "structured_outputs_backend",
    "structured_outputs_config.backend": "structured_outputs_backend",
    "tokenizer_path": "tokenizer",
    "tool_parser_plugin": "plugins",
}
"""Settings of vLLM and of servers like it that have another name here, with underscores."""


def plain(name: str) -> str:
    """A name as Python spells it: `--Page-Size` → `page_size`."""
    return name.lstrip("-").replace("-", "_").lower()


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Of the known names the one that `name` probably means, spelt as in `known`; None if none is near.

    Dashes and underscores are the same, and leading dashes do not count.
    """
    by_plain = {plain(one): one for one in known}
    wanted = plain(name)
    for one in (wanted, RENAMED.get(wanted)):
        if one is not None and one in by_plain:
            return by_plain[one]
    close = get_close_matches(wanted, list(by_plain), n=1)
    return by_plain[close[0]] if close else None
