"""Plain data that crosses module and process boundaries, frozen and picklable.

The server sends a `Request` to the engine process. There the scheduler makes a `Plan` for each step, the runner returns
a `StepResult`, and the engine sends a `SeqDelta` for each sequence back to the server. `ModelInfo`, `AdapterInfo`,
`EngineStats` and `RequestSummary` report the state of models, adapters, engines and ended requests.
"""

from quire.types.adapter_info import AdapterInfo, AdapterStats
from quire.types.encoder_input import EncoderInputInfo
from quire.types.model_info import ModelInfo
from quire.types.request import (
    AdapterRef,
    LoRARequest,
    Media,
    Params,
    Prompt,
    Request,
    WeightedAdapter,
    background,
    in_background,
)
from quire.types.stats import ClientUsage, EngineStats, RequestSummary, SpeculationStats, StateStats
from quire.types.step import (
    UNKNOWN,
    AcceptedDrafts,
    Chunk,
    FinishReason,
    HiddenStates,
    NewSeq,
    Plan,
    Sample,
    SeqDelta,
    StateMoves,
    StepResult,
    TokenLogprobs,
)
from quire.types.usage import ComputeCost, MediaUse, UsageRecord

__all__ = [
    "Params",
    "Media",
    "Prompt",
    "AdapterRef",
    "WeightedAdapter",
    "LoRARequest",
    "Request",
    "background",
    "in_background",
    "FinishReason",
    "UNKNOWN",
    "Chunk",
    "NewSeq",
    "Plan",
    "TokenLogprobs",
    "Sample",
    "AcceptedDrafts",
    "HiddenStates",
    "StateMoves",
    "StepResult",
    "SeqDelta",
    "ModelInfo",
    "EngineStats",
    "RequestSummary",
    "ClientUsage",
    "SpeculationStats",
    "StateStats",
    "EncoderInputInfo",
    "AdapterInfo",
    "AdapterStats",
    "ComputeCost",
    "MediaUse",
    "UsageRecord",
]
