"""Quire: one server, many base models, many adapters, every model-specific thing a plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.engine_api.args import AsyncEngineArgs as AsyncEngineArgs, EngineArgs as EngineArgs
    from quire.engine_api.async_engine import AsyncLLMEngine as AsyncLLMEngine
    from quire.engine_api.engine import LLMEngine as LLMEngine
    from quire.hookspecs import hookimpl as hookimpl
    from quire.inputs import TextPrompt as TextPrompt, TokensPrompt as TokensPrompt
    from quire.llm import LLM as LLM
    from quire.pooling import PoolingParams as PoolingParams
    from quire.records import (
        AdapterRuntime as AdapterRuntime,
        AdapterSource as AdapterSource,
        Architecture as Architecture,
        CallFrame as CallFrame,
        Channels as Channels,
        Command as Command,
        DemoModel as DemoModel,
        GrammarBackend as GrammarBackend,
        InputMapper as InputMapper,
        LogitsProcessor as LogitsProcessor,
        MetricsExporter as MetricsExporter,
        OpImpl as OpImpl,
        Option as Option,
        Quantization as Quantization,
        ReasoningParser as ReasoningParser,
        Refused as Refused,
        RequestGate as RequestGate,
        Router as Router,
        SchedulerPolicy as SchedulerPolicy,
        ToolCall as ToolCall,
        ToolParser as ToolParser,
        Transcriber as Transcriber,
    )
    from quire.sampling import BeamSearchParams as BeamSearchParams, SamplingParams as SamplingParams
    from quire.structured import (
        GuidedDecodingParams as GuidedDecodingParams,
        StructuredOutputsParams as StructuredOutputsParams,
    )
    from quire.text.outputs import CompletionOutput as CompletionOutput, RequestOutput as RequestOutput
    from quire.types import LoRARequest as LoRARequest

__version__ = "0.1.0"

_RECORDS = (
    "AdapterRuntime",
    "AdapterSource",
    "Architecture",
    "CallFrame",
    "Channels",
    "Command",
    "DemoModel",
    "GrammarBackend",
    "InputMapper",
    "LogitsProcessor",
    "MetricsExporter",
    "OpImpl",
    "Quantization",
    "Option",
    "ReasoningParser",
    "Refused",
    "RequestGate",
    "Router",
    "SchedulerPolicy",
    "ToolCall",
    "ToolParser",
    "Transcriber",
)

_HOME = {
    **dict.fromkeys(_RECORDS, "quire.records"),
    "AsyncEngineArgs": "quire.engine_api.args",
    "AsyncLLMEngine": "quire.engine_api.async_engine",
    "BeamSearchParams": "quire.sampling",
    "EngineArgs": "quire.engine_api.args",
    "GuidedDecodingParams": "quire.structured",
    "LLMEngine": "quire.engine_api.engine",
    "PoolingParams": "quire.pooling",
    "SamplingParams": "quire.sampling",
    "TextPrompt": "quire.inputs",
    "TokensPrompt": "quire.inputs",
    "StructuredOutputsParams": "quire.structured",
    "CompletionOutput": "quire.text.outputs",
    "RequestOutput": "quire.text.outputs",
    "LLM": "quire.llm",
    "LoRARequest": "quire.types",
    "hookimpl": "quire.hookspecs",
}

__all__ = [*sorted(_HOME), "__version__"]


_ELSEWHERE = {
    "ModelRegistry": "an architecture is what a plugin brings (docs/hooks.md: quire_architectures)",
    "ParserManager": "parsers are what plugins bring (docs/hooks.md)",
    "ToolParserManager": "a tool-call parser is what a plugin brings (docs/hooks.md: quire_tool_parsers)",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import quire` stays light."""
    if name in _ELSEWHERE:
        raise ImportError(f"quire has no {name}: {_ELSEWHERE[name]}.")
    if name not in _HOME:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
