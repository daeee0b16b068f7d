"""Tiny models on disk, with transformers beside them as the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_rig import Rig

from quire_testing.tiny import byte_tokenizer, reference_model, save

NEW_TOKENS = 64


class Model:
    """A tiny random model on disk and in transformers."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.folder = folder
        self.reference = reference_model(architecture)
        if self.reference.config.tie_word_embeddings:
            with torch.no_grad():  # else a tied model says the last token for ever
                self.reference.get_input_embeddings().weight.mul_(0.1)
        save(self.reference, folder)
        byte_tokenizer(folder)
        self.generate = cache(self._generate)

    def _generate(self, prompt: tuple[int, ...], **settings: Any) -> list[list[int]]:
        """What transformers makes of one prompt: each of the sequences it returns, without the prompt."""
        ids = torch.tensor([prompt])
        settings = {
            "do_sample": False,
            "max_new_tokens": NEW_TOKENS,
            "eos_token_id": None,
            "pad_token_id": 0,
            **settings,
        }
        found = self.reference.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return found[:, len(prompt) :].tolist()

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Row i: log-probabilities of the token at i + 1."""
        return torch.log_softmax(self.reference(torch.tensor([tokens])).logits[0].double(), -1)


@cache
def model_of(architecture: str, folder: str) -> Model:
    return Model(architecture, Path(folder) / architecture)


def total_preemptions(rig: Rig) -> tuple[int, int]:
    stats = rig.engine.stats()
    return stats.num_preemptions_recompute_total, stats.num_preemptions_swap_total
