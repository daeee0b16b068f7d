"""Everything that a plugin imports: `from quire.plugin import Architecture, Decoder, hookimpl`.

The hook marker; every record and protocol of `quire.records`; the errors that a plugin may raise; the parameters and
types that its functions receive; and the parts of `quire_models`, with their tables of weight names. Importing this
module imports neither torch nor pydantic: the names that need them are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire import records
from quire.errors import (
    BadRequest,
    CheckpointError,
    ConfigError,
    NotFound,
    NotSupported,
    Overloaded,
    PluginError,
    PromptTooLong,
    QuireError,
    TooLarge,
    Unprocessable,
    UnsupportedConstraint,
)
from quire.hooks.hookspecs import hookimpl
from quire.isolation.plugin_calls import Shared, SubprocessCalls
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredOutputsParams, StructuredSpec
from quire.records import *  # noqa: F403  (all of them)
from quire.types import (
    AdapterInfo,
    AdapterStats,
    Chunk,
    ClientUsage,
    EncoderInputInfo,
    EngineStats,
    HiddenStates,
    Media,
    ModelInfo,
    Plan,
    RequestSummary,
    UsageRecord,
    background,
)
from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from quire_models import (
    Attention,
    Block,
    ClampedSwiglu,
    CrossAttention,
    CrossAttentionBlock,
    Decoder,
    Dense,
    Encoder,
    EncoderInput,
    Expert,
    ExpertGroups,
    ExpertRouter,
    ExpertRouterPart,
    GatedDeltaNet,
    GatedMlp,
    GatedNorm,
    Head,
    KimiDelta,
    KvShape,
    LatentAttention,
    LayerNorm,
    Mamba1,
    Mamba2,
    MixerBlock,
    Mlp,
    Moe,
    ParallelBlock,
    ParallelMixers,
    PerHead,
    Pooler,
    Pooling,
    PositionBias,
    Positions,
    PostNormBlock,
    QueryScaling,
    RMSNorm,
    Rope,
    Routing,
    RowAttention,
    ShortConv,
    SigmoidGated,
    StateShape,
    StateTensor,
    Stripes,
    softmax_router,
    with_attention,
    with_blocks,
)
from quire_models.loading import config_fields, weight_names, weight_names_encoders
from quire_models.loading.headless import headless, without_head
from quire_models.loading.weight_names import RowOrder, WeightsMapper
from quire_models.parts.audio import AudioTower
from quire_models.parts.decoder import AttentionPart, BlockPart, Part
from quire_models.parts.encoder import TextEncoderTower
from quire_models.parts.patch_grid import PatchGridTower, PatchMerger
from quire_models.parts.pooling import Normalize, classification_poolers
from quire_models.parts.vision import Patches, Projector, VisionEncoder

if TYPE_CHECKING:
    from quire.types.request_model import Identifier, RequestModel, json_body
    from quire_kernels.quantized import QuantizedMatrix
    from quire_models import DecoderModel, EncoderModel, ForwardBatch, Items, ModuleBuilder, Projection, TowerCall

_IMPORTED_LATER = {
    "DecoderModel": "quire_models",
    "EncoderModel": "quire_models",
    "ForwardBatch": "quire_models",
    "Identifier": "quire.types.request_model",
    "Items": "quire_models",
    "ModuleBuilder": "quire_models",
    "Projection": "quire_models",
    "QuantizedMatrix": "quire_kernels.quantized",
    "RequestModel": "quire.types.request_model",
    "TowerCall": "quire_models",
    "json_body": "quire.types.request_model",
}

__all__ = [
    "AdapterInfo",
    "AdapterStats",
    "AllBlocksCleared",
    "Attention",
    "AttentionPart",
    "AudioTower",
    "BadRequest",
    "BeamSearchParams",
    "Block",
    "BlockPart",
    "BlockRemoved",
    "BlockStored",
    "CheckpointError",
    "Chunk",
    "ClampedSwiglu",
    "ConfigError",
    "CrossAttention",
    "CrossAttentionBlock",
    "Decoder",
    "DecoderModel",
    "Dense",
    "Encoder",
    "EncoderInput",
    "EncoderInputInfo",
    "EncoderModel",
    "ClientUsage",
    "EngineStats",
    "Expert",
    "ExpertGroups",
    "ExpertRouter",
    "ExpertRouterPart",
    "ForwardBatch",
    "GatedDeltaNet",
    "GatedMlp",
    "GatedNorm",
    "Head",
    "HiddenStates",
    "Identifier",
    "Items",
    "KimiDelta",
    "KvEvent",
    "KvShape",
    "LatentAttention",
    "LayerNorm",
    "Mamba1",
    "Mamba2",
    "Media",
    "MixerBlock",
    "Mlp",
    "ModelInfo",
    "ModuleBuilder",
    "Moe",
    "Normalize",
    "NotFound",
    "NotSupported",
    "Overloaded",
    "ParallelBlock",
    "ParallelMixers",
    "Part",
    "PatchGridTower",
    "PatchMerger",
    "Patches",
    "PerHead",
    "Plan",
    "PluginError",
    "Pooler",
    "Pooling",
    "PoolingParams",
    "PositionBias",
    "Positions",
    "PostNormBlock",
    "Projection",
    "Projector",
    "PromptTooLong",
    "QuantizedMatrix",
    "QuireError",
    "QueryScaling",
    "RMSNorm",
    "RequestModel",
    "RequestSummary",
    "Rope",
    "Routing",
    "RowAttention",
    "RowOrder",
    "SamplingParams",
    "Shared",
    "ShortConv",
    "SigmoidGated",
    "StateShape",
    "StateTensor",
    "Stripes",
    "StructuredOutputsParams",
    "StructuredSpec",
    "SubprocessCalls",
    "TextEncoderTower",
    "TooLarge",
    "TowerCall",
    "Unprocessable",
    "UnsupportedConstraint",
    "UsageRecord",
    "VisionEncoder",
    "WeightsMapper",
    "classification_poolers",
    "background",
    "config_fields",
    "headless",
    "hookimpl",
    "json_body",
    "softmax_router",
    "weight_names",
    "weight_names_encoders",
    "with_attention",
    "with_blocks",
    "without_head",
]
__all__ += records.__all__


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module 'quire.plugin' has no attribute {name!r}")
    return getattr(import_module(_IMPORTED_LATER[name]), name)
