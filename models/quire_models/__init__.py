"""Parts that models are made of, the modules they build, and the tables that load checkpoints.

    parts      frozen descriptions: Decoder, Block, Attention, GatedMlp, VisionEncoder, Pooling, ...
    modules    the `nn.Module`s that parts build; `ModuleBuilder` creates their matrices
    loading    config.json, weight-name tables, checkpoint files: from a model folder to a filled model
    step       what layers receive in a step: `ForwardBatch`, `KVCache`, rotary angles
    testing    runs a model without an engine, for tests of architectures

An architecture maps a config to a `Decoder` or `Encoder`; `part.build(builder)` gives the model, and
`loading.weights.load` fills it. `configs` reads config fields, `names` holds the weight-name tables.
Importing this package imports no torch: parts and tables are plain data, and modules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire_kernels.attention import Stripes
from quire_kernels.moe import ClampedSwiglu, ExpertGroups, Routing
from quire_models.loading import config_fields as configs, weight_names as names
from quire_models.loading.weight_names import WeightsMapper
from quire_models.parts.attention.latent import LatentAttention
from quire_models.parts.attention.position_bias import PositionBias
from quire_models.parts.attention.query_scaling import QueryScaling
from quire_models.parts.audio import AudioTower
from quire_models.parts.changes import with_attention, with_blocks
from quire_models.parts.cross_attention import CrossAttention, CrossAttentionBlock, EncoderInput
from quire_models.parts.decoder import (
    Attention,
    AttentionPart,
    Block,
    BlockPart,
    Decoder,
    GatedMlp,
    KvShape,
    Mlp,
    ParallelBlock,
    Part,
    Positions,
    PostNormBlock,
)
from quire_models.parts.encoder import Encoder, RowAttention
from quire_models.parts.mixers import MixerBlock, ParallelMixers
from quire_models.parts.moe import (
    Expert,
    ExpertRouter,
    ExpertRouterPart,
    Moe,
    SigmoidGated,
    softmax_router,
)
from quire_models.parts.norms import LayerNorm, PerHead, RMSNorm
from quire_models.parts.patch_grid import PatchGridTower, PatchMerger
from quire_models.parts.pooling import (
    Dense,
    Head,
    Normalize,
    Pooler,
    Pooling,
    PoolingActivation,
    PoolingType,
    classification_poolers,
    embedding_poolers,
)
from quire_models.parts.recurrent.convolution import ShortConv
from quire_models.parts.recurrent.delta import GatedDeltaNet, KimiDelta
from quire_models.parts.recurrent.mamba import GatedNorm, Mamba1, Mamba2
from quire_models.parts.rope_config import DynamicNtk, LinearScaling, Llama3, LongRope, Rope, Yarn
from quire_models.parts.state import StateShape, StateTensor
from quire_models.parts.vision import Patches, Projector, VisionEncoder

if TYPE_CHECKING:
    from quire_models.modules.attention.cross_attention import EncoderSlotMapping as EncoderSlotMapping
    from quire_models.modules.blocks import DecoderModel as DecoderModel
    from quire_models.modules.builder import ModuleBuilder as ModuleBuilder
    from quire_models.modules.encoder import EncoderModel as EncoderModel
    from quire_models.modules.projection import Projection as Projection
    from quire_models.step.forward_batch import (
        CrossAttentionBuffers as CrossAttentionBuffers,
        ForwardBatch as ForwardBatch,
        ForwardBuffers as ForwardBuffers,
        MediaRows as MediaRows,
    )
    from quire_models.step.kv_cache import KVCache as KVCache
    from quire_models.step.state_cache import StateCache as StateCache
    from quire_models.towers.grid_positions import Grid as Grid, grid_positions as grid_positions
    from quire_models.towers.tower import Items as Items, TowerCall as TowerCall, TowerContext as TowerContext

_LAZY = {
    "CrossAttentionBuffers": "quire_models.step.forward_batch",
    "DecoderModel": "quire_models.modules.blocks",
    "EncoderModel": "quire_models.modules.encoder",
    "EncoderSlotMapping": "quire_models.modules.attention.cross_attention",
    "ForwardBatch": "quire_models.step.forward_batch",
    "ForwardBuffers": "quire_models.step.forward_batch",
    "Grid": "quire_models.towers.grid_positions",
    "Items": "quire_models.towers.tower",
    "KVCache": "quire_models.step.kv_cache",
    "MediaRows": "quire_models.step.forward_batch",
    "ModuleBuilder": "quire_models.modules.builder",
    "Projection": "quire_models.modules.projection",
    "StateCache": "quire_models.step.state_cache",
    "TowerCall": "quire_models.towers.tower",
    "TowerContext": "quire_models.towers.tower",
    "grid_positions": "quire_models.towers.grid_positions",
}
"""Names that need torch or numpy, and their modules."""

__all__ = [
    "Attention",
    "AttentionPart",
    "AudioTower",
    "Block",
    "BlockPart",
    "ClampedSwiglu",
    "CrossAttention",
    "CrossAttentionBlock",
    "CrossAttentionBuffers",
    "Decoder",
    "DecoderModel",
    "Dense",
    "DynamicNtk",
    "Encoder",
    "EncoderInput",
    "EncoderModel",
    "EncoderSlotMapping",
    "Expert",
    "ExpertGroups",
    "ExpertRouter",
    "ExpertRouterPart",
    "ForwardBatch",
    "ForwardBuffers",
    "GatedDeltaNet",
    "GatedMlp",
    "GatedNorm",
    "Grid",
    "Head",
    "Items",
    "KimiDelta",
    "KVCache",
    "KvShape",
    "LatentAttention",
    "LayerNorm",
    "LinearScaling",
    "Llama3",
    "LongRope",
    "Mamba1",
    "Mamba2",
    "MediaRows",
    "MixerBlock",
    "Mlp",
    "ModuleBuilder",
    "Moe",
    "Normalize",
    "ParallelBlock",
    "ParallelMixers",
    "Part",
    "PatchGridTower",
    "PatchMerger",
    "Patches",
    "PerHead",
    "Pooler",
    "Pooling",
    "PoolingActivation",
    "PoolingType",
    "PositionBias",
    "Positions",
    "PostNormBlock",
    "Projection",
    "Projector",
    "QueryScaling",
    "RMSNorm",
    "Rope",
    "Routing",
    "RowAttention",
    "ShortConv",
    "SigmoidGated",
    "StateCache",
    "StateShape",
    "StateTensor",
    "Stripes",
    "TowerCall",
    "TowerContext",
    "VisionEncoder",
    "WeightsMapper",
    "Yarn",
    "classification_poolers",
    "configs",
    "embedding_poolers",
    "grid_positions",
    "names",
    "softmax_router",
    "with_attention",
    "with_blocks",
]


def __getattr__(name: str) -> Any:
    """Import a name of `_LAZY` on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'quire_models' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
