"""What the demo LLaVA learns from: the losses of its answers and of what its tower sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from data.images.picture_batches import FORMS, IGNORE, Lessons, Pictures
from data.images.scenes import COLOURS
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlavaForConditionalGeneration


class Learner(nn.Module):
    """The model with the two layers that say what the tower sees."""

    def __init__(self, model: LlavaForConditionalGeneration, is_compiled: bool) -> None:
        super().__init__()
        text = model.model.language_model
        # Not a module of its own, or its weights would be there twice.
        self.read: Callable[..., Any] = torch.compile(text.forward, dynamic=False) if is_compiled else text.forward
        self.model = model
        width = model.config.vision_config.hidden_size
        self.form, self.colour = nn.Linear(width, 1 + len(FORMS)), nn.Linear(width, 1 + len(COLOURS))

    def see(self, pictures: Pictures) -> tuple[torch.Tensor, torch.Tensor]:
        """What the projector reads, [rows, patches, width], and the loss of the tower's own task."""
        tower = self.model.model.vision_tower
        hidden = tower.pre_layrnorm(tower.embeddings(pictures.pixels))
        for layer in tower.encoder.layers[:-1]:
            hidden = layer(hidden, None)
        seen = hidden[:, 1:]
        loss = sum(
            cross_entropy(head(seen).float().flatten(0, 1), pictures.under[..., i].flatten())
            for i, head in enumerate((self.form, self.colour))
        )
        return seen, loss

    def answer(self, lessons: Lessons) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of the answers, and that of the tower's own task."""
        seen, tower_loss = self.see(lessons.pictures)
        inner = self.model.model
        embedded = inner.language_model.embed_tokens(lessons.ids)
        is_picture = lessons.ids == self.model.config.image_token_id
        embedded[is_picture] = inner.multi_modal_projector(seen).flatten(0, 1).to(embedded.dtype)
        hidden = self.read(
            inputs_embeds=embedded,
            attention_mask=torch.zeros(lessons.visible.shape).masked_fill(~lessons.visible, -1e30),
            position_ids=lessons.positions,
            use_cache=False,
        ).last_hidden_state
        wanted = lessons.targets[:, 1:]
        keep = wanted != IGNORE
        return cross_entropy(self.model.lm_head(hidden[:, :-1][keep]).float(), wanted[keep]), tower_loss
