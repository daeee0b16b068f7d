"""Adapters that make a tiny model say one letter for ever, whatever it is asked: so an answer shows whose it is.

They add the same large vector to the embedding of every token. The residual stream then is that vector and little else,
so the head sees nothing but it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LOUD = 1e4
"""How much larger than what the layers add."""


def let_say(base: Path, letter: str) -> Path:
    """Change the weights of a tiny Llama so that it says this letter itself; gives its folder."""
    weights = load_file(base / "model.safetensors")
    vector = Voices(base).vector(letter)
    weights["model.embed_tokens.weight"] += LOUD * vector / vector.norm()
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    return base


class Voices:
    """Makes adapters for one tiny Llama. ballast_rank: of low ranks on MLPs, which take memory and do nothing.

    louder: by how much, for a model that says a letter itself.
    """

    def __init__(self, base: Path, ballast_rank: int = 0, louder: int = 1) -> None:
        self._weights = {name: tensor.float() for name, tensor in load_file(base / "model.safetensors").items()}
        self._rank, self._louder = ballast_rank, louder

    def vector(self, letter: str) -> torch.Tensor:
        """The hidden state [width] that makes the model say this letter."""
        head, norm = self._weights["lm_head.weight"], self._weights["model.norm.weight"]
        vector = torch.linalg.lstsq((head * norm).double(), _wish(len(head), ord(letter))).solution.float()[:, 0]
        assert int((head @ (norm * vector)).argmax()) == ord(letter), "this model cannot say it"
        return vector

    def adapter(self, folder: Path, letter: str) -> Path:
        """One that says this letter; gives its folder."""
        vector = self.vector(letter)
        vocab = len(self._weights["model.embed_tokens.weight"])
        tensors = {
            "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(1, vocab),
            "base_model.model.model.embed_tokens.lora_embedding_B": LOUD * vector[:, None] / vector.norm(),
            **self._ballast(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "r": max(1, self._rank),
            "lora_alpha": max(1, self._rank),
            "rank_pattern": {"embed_tokens": 1},
            "alpha_pattern": {"embed_tokens": self._louder},
            "target_modules": ["embed_tokens", *(["gate_proj", "up_proj", "down_proj"] if self._rank else [])],
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    def _ballast(self) -> dict[str, torch.Tensor]:
        made = {}
        for name, weight in self._weights.items():
            if self._rank and ".mlp." in name:
                module = "base_model.model." + name.removesuffix(".weight")
                made[f"{module}.lora_A.weight"] = torch.ones(self._rank, weight.shape[1])
                made[f"{module}.lora_B.weight"] = torch.zeros(weight.shape[0], self._rank)
        return made


def _wish(vocab: int, token: int) -> torch.Tensor:
    """Logits [vocab, 1] that are high for one token."""
    wish = torch.zeros(vocab, 1, dtype=torch.float64)
    wish[token] = 1
    return wish
