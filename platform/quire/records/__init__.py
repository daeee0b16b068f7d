"""What plugins hand over: one frozen record per kind of thing, and the protocols of what they build.

Records are data with a `name`; heavy work hides behind `build` or `load`, which the host calls when
the thing is first needed. Nothing here imports torch or any part of the platform.
"""

from quire.records.adapters import AdapterFacts, AdapterRuntime, AdapterSource, AdapterUses, RunsAdapters
from quire.records.channels import Channels
from quire.records.context import CONTRACT_VERSION, Context
from quire.records.edges import (
    Command,
    DemoModel,
    GateRequest,
    GatesRequests,
    MetricsExporter,
    ObservesStats,
    Option,
    Refused,
    RequestGate,
    Router,
)
from quire.records.models import Architecture, InputMapper, Mapped, MapsAmong, MapsInput, Worded
from quire.records.ops import OpImpl, OpQuery, Quantization
from quire.records.reasoning import ReasoningParser
from quire.records.registry import RECORDS, CountsCalls, PluginInfo, Registry
from quire.records.sampling import (
    CompilesGrammars,
    Grammar,
    GrammarBackend,
    LogitsProcessor,
    Matcher,
    ProcessesLogits,
    ProcessorRow,
)
from quire.records.scheduling import OrdersSeqs, SchedulerPolicy, SeqView
from quire.records.speech import Detection, Segment, SpeechTask, Transcriber, Transcribes
from quire.records.tools import CallFrame, ToolCall, ToolParser

__all__ = [
    "AdapterFacts",
    "AdapterRuntime",
    "AdapterSource",
    "AdapterUses",
    "Architecture",
    "CONTRACT_VERSION",
    "CallFrame",
    "Channels",
    "Command",
    "CompilesGrammars",
    "Context",
    "CountsCalls",
    "DemoModel",
    "Detection",
    "GateRequest",
    "GatesRequests",
    "Grammar",
    "GrammarBackend",
    "InputMapper",
    "LogitsProcessor",
    "Mapped",
    "MapsAmong",
    "MapsInput",
    "Matcher",
    "MetricsExporter",
    "ObservesStats",
    "OpImpl",
    "OpQuery",
    "Option",
    "OrdersSeqs",
    "PluginInfo",
    "ProcessesLogits",
    "ProcessorRow",
    "Quantization",
    "RECORDS",
    "ReasoningParser",
    "Refused",
    "Registry",
    "RequestGate",
    "Router",
    "RunsAdapters",
    "SchedulerPolicy",
    "Segment",
    "SeqView",
    "SpeechTask",
    "ToolCall",
    "ToolParser",
    "Transcriber",
    "Transcribes",
    "Worded",
]
