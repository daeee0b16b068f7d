"""Parts that language models are made of, the modules they build, and the tables that load checkpoints.

Importing this package imports no torch: parts and name tables are plain data.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire_models import configs as configs, names as names
from quire_models.encoder import Encoder, RowAttention
from quire_models.norm_parts import LayerNorm, Norm, PerHead
from quire_models.parts import (
    Attention,
    Block,
    Decoder,
    GatedMlp,
    KvShape,
    Mlp,
    Moe,
    ParallelBlock,
    Positions,
    PostNormBlock,
    with_attention,
    with_blocks,
)
from quire_models.poolers import Dense, Head, Pooler, Pooling
from quire_models.scalings import Rope
from quire_models.sources import CrossAttention, Source, SourceBlock

if TYPE_CHECKING:
    from quire_models.blocks import DecoderModel as DecoderModel
    from quire_models.encoder_blocks import EncoderModel as EncoderModel
    from quire_models.forward import (
        Forward as Forward,
        ForwardBuffers as ForwardBuffers,
        MediaRows as MediaRows,
        SourceBuffers as SourceBuffers,
    )
    from quire_models.make import Make as Make
    from quire_models.pool import KvPool as KvPool
    from quire_models.projection import Projection as Projection
    from quire_models.source_blocks import SourceSlots as SourceSlots
    from quire_models.tower import Items as Items, TowerCall as TowerCall

_NEED_TORCH = {
    "DecoderModel": "quire_models.blocks",
    "EncoderModel": "quire_models.encoder_blocks",
    "Forward": "quire_models.forward",
    "ForwardBuffers": "quire_models.forward",
    "MediaRows": "quire_models.forward",
    "Make": "quire_models.make",
    "KvPool": "quire_models.pool",
    "Items": "quire_models.tower",
    "Projection": "quire_models.projection",
    "SourceBuffers": "quire_models.forward",
    "SourceSlots": "quire_models.source_blocks",
    "TowerCall": "quire_models.tower",
}

__all__ = [
    "Attention",
    "Block",
    "CrossAttention",
    "Decoder",
    "Dense",
    "Encoder",
    "GatedMlp",
    "Head",
    "KvShape",
    "LayerNorm",
    "Mlp",
    "Moe",
    "Norm",
    "ParallelBlock",
    "PerHead",
    "Pooler",
    "Pooling",
    "Positions",
    "PostNormBlock",
    "Rope",
    "RowAttention",
    "Source",
    "SourceBlock",
    "configs",
    "names",
    "with_attention",
    "with_blocks",
    "DecoderModel",
    "EncoderModel",
    "Forward",
    "ForwardBuffers",
    "Items",
    "KvPool",
    "Make",
    "MediaRows",
    "Projection",
    "SourceBuffers",
    "SourceSlots",
    "TowerCall",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'quire_models' has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)
