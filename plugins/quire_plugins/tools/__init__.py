"""Formats of tool calls, one module per family. Each module lists its parsers; `quire_tool_parsers` returns all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import ToolParser, hookimpl
from quire_plugins.tools import deepseek, gemma, granite, harmony, hermes, llama, mistral, phi, pythonic, qwen_xml

FAMILIES = (hermes, qwen_xml, llama, pythonic, mistral, granite, deepseek, phi, gemma, harmony)


@hookimpl
def quire_tool_parsers() -> Iterable[ToolParser]:
    """The formats of all families."""
    for family in FAMILIES:
        yield from family.parsers()
