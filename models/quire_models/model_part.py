"""What the engine asks of a part that describes a whole model: `Decoder`, `Encoder`, or a part of a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.cross_attention import EncoderInput
    from quire_models.parts.decoder import Positions
    from quire_models.parts.state import KvShape, StateShape


@runtime_checkable
class ModelPart(Protocol):
    """A model as `Architecture.decoder` describes it; attributes without a comment are explained at `Decoder`.

    `build` returns a module with the interface of `quire_models.modules.blocks.DecoderModel`: called with a
    `ForwardBatch`, it returns the hidden states of the logit rows [L, width] and writes keys and values to the cache;
    `logits` and `argmax` (with a language head), `embed_rows`, and the attributes `part`, `tower`, `heads`, `ops`,
    `dtype`, `device`. Its method `verify()`, if it has one, is called once the weights are loaded; it raises
    CheckpointError if the model cannot be served.
    """

    @property
    def vocab(self) -> int: ...

    @property
    def width(self) -> int:
        """Width of the hidden states that the model returns."""
        ...

    @property
    def row_width(self) -> int:
        """Width of an embedding, and of the rows that a tower returns."""
        ...

    @property
    def blocks(self) -> tuple[Any, ...]:
        """Parts of the blocks, of which `needs_ops` are asked; empty if the model is not made of such parts."""
        ...

    @property
    def positions(self) -> Positions | None: ...

    @property
    def tied(self) -> bool: ...

    @property
    def has_lm_head(self) -> bool: ...

    @property
    def non_causal(self) -> bool:
        """Whether a prompt must be computed in one step, and nothing of it is cached."""
        ...

    @property
    def bidirectional_media(self) -> bool: ...

    @property
    def encoder_input(self) -> EncoderInput | None: ...

    @property
    def has_token_types(self) -> bool:
        """Whether it distinguishes the texts of a pair by `ForwardBatch.token_types`."""
        ...

    @property
    def position_axes(self) -> int: ...

    @property
    def kv_shapes(self) -> tuple[KvShape, ...]:
        """What each layer of the KV cache stores per token."""
        ...

    @property
    def state_shapes(self) -> tuple[StateShape | None, ...]:
        """What each layer keeps of a seq besides, None for nothing."""
        ...

    @property
    def has_kv_cache_variants(self) -> bool: ...

    def kv_cache_variant(self, prompt_len: int) -> int:
        """Part of the page hash: prompts share cached pages only if this is equal for their lengths."""
        ...

    def build(self, builder: ModuleBuilder) -> Any:
        """The model, with uninitialized weights."""
        ...
