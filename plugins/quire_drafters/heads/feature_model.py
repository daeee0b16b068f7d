"""The common base of draft models that predict features: EAGLE and MTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from quire.plugin import ReadsHidden, WeightsMapper
from quire_drafters.heads.head_files import CheckedFiles
from quire_models import ForwardBatch, KvShape
from quire_models.loading import weights
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.stack import TransformerStack


class FeatureModel(TransformerStack):
    """Blocks that make the next feature of a token's embedding and the feature before it.

    target: the loaded model, whose embedding table and LM head are used where the draft model has none of its own.
    own_vocab: rows of its own embedding table, None without one. weight_bytes: size of its weights, once loaded.
    columns: int64, the tokens of the columns of its logits, None if column i is token i. Subclasses say how the inputs
    are combined.
    """

    reads_hidden = ReadsHidden(every=True)
    kv_shapes: tuple[KvShape, ...]
    weight_bytes = 0
    columns: Tensor | None = None

    def __init__(self, width: int, builder: ModuleBuilder, target: Any, own_vocab: int | None) -> None:
        super().__init__(width, builder)
        self._target, self._vocab = [target], target.decoder.vocab  # in a list, so that it is no submodule
        self.embed = None if own_vocab is None else EmbeddingTable(own_vocab, width, builder)
        self.norm: nn.Module | None = None

    def read(self, rows: Tensor) -> Tensor:
        """Hidden states of a step [n, columns] -> features [n, width], a copy."""
        return rows[:, : self._width].clone()

    def no_feature(self) -> Tensor:
        """A feature of zeros, [1, width]."""
        return torch.zeros(1, self._width, dtype=self.dtype, device=self.device)

    def forward(self, fwd: ForwardBatch, features: Tensor) -> Tensor:
        """features: [tokens, width], those before the tokens of the step -> those after its logit rows [L, width]."""
        return self._run(self.inputs(self.embed_tokens(fwd.tokens), features), fwd)

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """What the first block gets, of embeddings and features [tokens, width]."""
        raise NotImplementedError

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Embeddings [len(ids), width]; ids that are no tokens, such as those of media, get the first row."""
        ids = torch.where((ids >= 0) & (ids < self._vocab), ids, 0)
        if self.embed is not None:
            return self.embed.look_up(ids)
        module = self._target[0].module
        found: Tensor = module.embed_rows(ids).to(self.dtype)
        scale = getattr(module, "embed_scale", 1.0)
        return found if scale == 1.0 else found * scale

    def before_head(self, features: Tensor) -> Tensor:
        """What the LM head gets, [rows, width]."""
        return features

    def logits(self, features: Tensor) -> Tensor:
        """features [rows, width] -> float32 [rows, tokens that it can draft]."""
        found: Tensor = self._target[0].module.logits(self.before_head(features))
        return found

    def argmax(self, features: Tensor) -> list[int]:
        """The most likely token after each feature."""
        found: list[int] = self._target[0].module.argmax(self.before_head(features))
        return found

    def token_ids(self, columns: Sequence[int]) -> list[int]:
        """The tokens of columns of `logits`; -1 stays."""
        return list(columns)


AnyFeatureModel = TypeVar("AnyFeatureModel", bound=FeatureModel)


def load_model(
    build: Callable[[ModuleBuilder], AnyFeatureModel],
    builder: ModuleBuilder,
    decoder: Any,
    names: WeightsMapper,
    tensors: CheckedFiles,
) -> AnyFeatureModel:
    """What `build` builds, with the weights in `tensors`; names and shapes are checked before memory is allocated.

    decoder: the part of the model that is drafted for. Raises CheckpointError or ConfigError.
    """
    plan = build(replace(builder, device=torch.device("meta"), shared={}))
    weights.check(plan, decoder, names, tensors)
    model = build(builder)
    weights.load(model, decoder, names, tensors)
    model.weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in plan.parameters())
    return model
