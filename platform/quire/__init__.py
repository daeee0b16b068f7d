"""Quire serves many base models and many adapters in one process tree; everything model-specific is a plugin.

Requests enter through `server` (HTTP), `llm` (offline) or `engine_api` (vLLM's engine interface). `text` turns them
into token ids and turns outputs back into text. `engine_process` connects the API process with the process that runs
one `engine` per model. `hooks` loads plugins; `records` and `types` are the frozen data that all parts exchange.
The public names below are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.engine_api.args import AsyncEngineArgs as AsyncEngineArgs, EngineArgs as EngineArgs
    from quire.engine_api.async_engine import AsyncLLMEngine as AsyncLLMEngine
    from quire.engine_api.engine import LLMEngine as LLMEngine
    from quire.hooks.hookspecs import hookimpl as hookimpl
    from quire.inputs import TextPrompt as TextPrompt, TokensPrompt as TokensPrompt
    from quire.llm.llm import LLM as LLM
    from quire.params.pooling import PoolingParams as PoolingParams
    from quire.params.sampling import BeamSearchParams as BeamSearchParams, SamplingParams as SamplingParams
    from quire.params.structured import (
        GuidedDecodingParams as GuidedDecodingParams,
        StructuredOutputsParams as StructuredOutputsParams,
    )
    from quire.records import (
        AdapterRuntime as AdapterRuntime,
        AdapterSource as AdapterSource,
        Architecture as Architecture,
        Channels as Channels,
        Command as Command,
        DemoModel as DemoModel,
        Draft as Draft,
        Drafter as Drafter,
        DraftQuery as DraftQuery,
        GrammarBackend as GrammarBackend,
        InputMapper as InputMapper,
        LogitsProcessor as LogitsProcessor,
        MetricsExporter as MetricsExporter,
        OpImpl as OpImpl,
        Option as Option,
        Quantization as Quantization,
        ReasoningParser as ReasoningParser,
        RequestGate as RequestGate,
        RequestRefused as RequestRefused,
        Router as Router,
        SchedulerPolicy as SchedulerPolicy,
        ToolCall as ToolCall,
        ToolCallFormat as ToolCallFormat,
        ToolParser as ToolParser,
        Transcriber as Transcriber,
    )
    from quire.text.outputs.outputs import CompletionOutput as CompletionOutput, RequestOutput as RequestOutput
    from quire.types import LoRARequest as LoRARequest

__version__ = "0.1.0"

_RECORDS = (
    "AdapterRuntime",
    "AdapterSource",
    "Architecture",
    "ToolCallFormat",
    "Channels",
    "Command",
    "DemoModel",
    "Draft",
    "Drafter",
    "DraftQuery",
    "GrammarBackend",
    "InputMapper",
    "LogitsProcessor",
    "MetricsExporter",
    "OpImpl",
    "Quantization",
    "Option",
    "ReasoningParser",
    "RequestRefused",
    "RequestGate",
    "Router",
    "SchedulerPolicy",
    "ToolCall",
    "ToolParser",
    "Transcriber",
)

_MODULES = {
    **dict.fromkeys(_RECORDS, "quire.records"),
    "AsyncEngineArgs": "quire.engine_api.args",
    "AsyncLLMEngine": "quire.engine_api.async_engine",
    "BeamSearchParams": "quire.params.sampling",
    "EngineArgs": "quire.engine_api.args",
    "GuidedDecodingParams": "quire.params.structured",
    "LLMEngine": "quire.engine_api.engine",
    "PoolingParams": "quire.params.pooling",
    "SamplingParams": "quire.params.sampling",
    "TextPrompt": "quire.inputs",
    "TokensPrompt": "quire.inputs",
    "StructuredOutputsParams": "quire.params.structured",
    "CompletionOutput": "quire.text.outputs.outputs",
    "RequestOutput": "quire.text.outputs.outputs",
    "LLM": "quire.llm.llm",
    "LoRARequest": "quire.types",
    "hookimpl": "quire.hooks.hookspecs",
}

__all__ = [*sorted(_MODULES), "__version__"]


_REPLACED = {
    "ModelRegistry": "architectures come from plugins (docs/hooks.md: quire_architectures)",
    "ParserManager": "parsers come from plugins (docs/hooks.md)",
    "ToolParserManager": "tool-call parsers come from plugins (docs/hooks.md: quire_tool_parsers)",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import quire` stays fast."""
    if name in _REPLACED:
        raise ImportError(f"quire has no {name}: {_REPLACED[name]}.")
    if name not in _MODULES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
