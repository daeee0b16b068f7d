"""Finds the setting that an unknown flag, YAML key or Python argument probably means.

First by vLLM's names of settings that have another name here, then by similar spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

RENAMED: Mapping[str, str] = {
    "block_size": "page_size",
    "convert": "task",
    "guided_decoding_backend": "structured_outputs_backend",
    "io_processor_plugin": "plugins",
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
"""Names of settings in vLLM and similar servers, to the names here; both with underscores."""


def plain(name: str) -> str:
    """A name in Python's spelling: `--Page-Size` → `page_size`."""
    return name.lstrip("-").replace("-", "_").lower()


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` probably means, spelled as in `known`; None if none is similar.

    Leading dashes do not count, and dashes equal underscores.
    """
    by_plain = {plain(known_name): known_name for known_name in known}
    wanted = plain(name)
    for candidate in (wanted, RENAMED.get(wanted)):
        if candidate is not None and candidate in by_plain:
            return by_plain[candidate]
    close = get_close_matches(wanted, list(by_plain), n=1)
    return by_plain[close[0]] if close else None
