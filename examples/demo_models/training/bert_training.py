"""What the trainings of embedder and reranker share: their optimizers, and the weights as they are shipped."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from training.training_loop import rate_factor

PLUGINS = Path(__file__).resolve().parents[3] / "plugins" / "quire_plugins"


class Optimizer:
    """Muon for the matrices inside the layers, AdamW for all else; one learning rate that warms up and falls.

    Muon needs clearly fewer steps than AdamW alone. Its updates are scaled to the size of those of AdamW.
    """

    def __init__(self, model: PreTrainedModel, learning_rate: float, steps: int) -> None:
        inner = {n: p for n, p in model.named_parameters() if p.ndim == 2 and ".layer." in n}
        others = [p for n, p in model.named_parameters() if n not in inner]
        self._model, self._rate, self._steps, self._step = model, learning_rate, steps, 0
        self._parts = [
            torch.optim.Muon(inner.values(), lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
        ]

    def step(self, loss: torch.Tensor) -> None:
        """One update of all weights."""
        loss.backward()
        clip_grad_norm_(self._model.parameters(), 1.0)
        rate = self._rate * rate_factor(self._step, self._step / self._steps, warm_up=50)
        self._step += 1
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write bfloat16 weights and their configuration in Hugging Face format."""
    model.to(torch.bfloat16).save_pretrained(folder)
