"""The plugin contract: one frozen record per kind of thing that a plugin provides, and protocols of what records build.

A noun hook (`quire.hooks.hookspecs`) yields records. `quire.hooks.registry.load` collects them in a `Registry`, by hook
and name, and the engine and the server look records up there. A record is data with a `name`; the heavy work is in
its `build` or `load`, which Quire calls with a `Context` when the thing is first needed. The protocols (`…Impl` and
others) say what `build` must return.

Nothing here imports torch or another part of the platform at run time, except errors.
"""

from quire.records.adapters import (
    AdapterMetadata,
    AdapterRuntime,
    AdapterRuntimeImpl,
    AdapterSource,
    AdapterUses,
    VirtualKvImpl,
)
from quire.records.cli import Command, DemoModel, Option
from quire.records.context import CONTRACT_VERSION, Context, Deferred
from quire.records.grammar import Grammar, GrammarBackend, GrammarCompiler, IsolatedGrammarCompiler, Matcher
from quire.records.logits import LogitsProcessor, LogitsProcessorImpl, ProcessorRow
from quire.records.models import (
    Architecture,
    ArchitectureFallback,
    ArchitectureQuery,
    CountAwareInputProcessor,
    InputMapper,
    InputProcessor,
    MappedMedia,
    MappedText,
    ModalityAwareInputProcessor,
    PromptInputProcessor,
)
from quire.records.ops import (
    CheckpointFormat,
    OpImpl,
    OpQuery,
    Quantization,
    QuantizationOptions,
    StoredMatrix,
)
from quire.records.reasoning import Channels, MessageKind, ReasoningParser
from quire.records.registry import RECORDS, PluginCallCounts, PluginInfo, Registry
from quire.records.replicas.executors import Executor, ExecutorContext, ExecutorImpl, RankProgram, StartedRank
from quire.records.replicas.kv_events import KvEventContext, KvEventPublisher, KvEventPublisherImpl
from quire.records.replicas.kv_stores import KvStore, KvStoreContext, KvStoreImpl, KvStoreUse
from quire.records.replicas.routing import RoutingCandidates, RoutingPolicy, RoutingPolicyImpl
from quire.records.scheduling import SchedulerPolicy, SchedulingPolicyImpl, SeqView
from quire.records.server import (
    Answer,
    AnswerDelta,
    AnswerUsage,
    CallRoute,
    FindFormats,
    GateRequest,
    Generate,
    MetricsExporter,
    ModelFormats,
    ReadBody,
    RequestGate,
    RequestGateImpl,
    RequestRefused,
    Router,
    RouterContext,
    StartAnswer,
    StartTranscription,
    StatsObserver,
    StreamEvents,
    ToolCallDelta,
)
from quire.records.speculation import (
    Draft,
    Drafter,
    DrafterContext,
    DrafterImpl,
    DraftQuery,
    HiddenReader,
    ReadsHidden,
)
from quire.records.speech import LanguageDetection, Segment, SpeechTask, Transcriber, TranscriberImpl
from quire.records.tools import ToolCall, ToolCallFormat, ToolParser
from quire.types.route_calls import RouteAnswer, Upload

__all__ = [
    "AdapterMetadata",
    "AdapterRuntime",
    "AdapterRuntimeImpl",
    "VirtualKvImpl",
    "AdapterSource",
    "AdapterUses",
    "Answer",
    "AnswerDelta",
    "AnswerUsage",
    "Architecture",
    "ArchitectureFallback",
    "ArchitectureQuery",
    "CONTRACT_VERSION",
    "CallRoute",
    "Channels",
    "CheckpointFormat",
    "Command",
    "Context",
    "Deferred",
    "CountAwareInputProcessor",
    "DemoModel",
    "Draft",
    "DraftQuery",
    "Drafter",
    "DrafterContext",
    "DrafterImpl",
    "Executor",
    "ExecutorContext",
    "ExecutorImpl",
    "FindFormats",
    "GateRequest",
    "Generate",
    "Grammar",
    "GrammarBackend",
    "GrammarCompiler",
    "HiddenReader",
    "InputMapper",
    "InputProcessor",
    "IsolatedGrammarCompiler",
    "KvEventContext",
    "KvEventPublisher",
    "KvEventPublisherImpl",
    "KvStore",
    "KvStoreContext",
    "KvStoreImpl",
    "KvStoreUse",
    "LanguageDetection",
    "LogitsProcessor",
    "LogitsProcessorImpl",
    "MappedMedia",
    "MappedText",
    "ModalityAwareInputProcessor",
    "Matcher",
    "MessageKind",
    "MetricsExporter",
    "ModelFormats",
    "OpImpl",
    "OpQuery",
    "Option",
    "PluginCallCounts",
    "PluginInfo",
    "ProcessorRow",
    "PromptInputProcessor",
    "Quantization",
    "QuantizationOptions",
    "RECORDS",
    "RankProgram",
    "ReadBody",
    "ReadsHidden",
    "ReasoningParser",
    "Registry",
    "RequestGate",
    "RequestGateImpl",
    "RequestRefused",
    "Router",
    "RouteAnswer",
    "RouterContext",
    "RoutingCandidates",
    "RoutingPolicy",
    "RoutingPolicyImpl",
    "Upload",
    "SchedulerPolicy",
    "SchedulingPolicyImpl",
    "Segment",
    "SeqView",
    "SpeechTask",
    "StartAnswer",
    "StartTranscription",
    "StartedRank",
    "StatsObserver",
    "StoredMatrix",
    "StreamEvents",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallFormat",
    "ToolParser",
    "Transcriber",
    "TranscriberImpl",
]
