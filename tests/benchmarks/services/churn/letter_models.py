"""Small models and adapters that each say one letter, and the settings of a server with them."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from letter_adapters import Voices, let_say
from safetensors.torch import load_file, save_file

from quire_testing.tiny import tiny_llama

SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4},
    "small": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
"""Of 4 and of 76 million parameters."""

KV_BYTES = 16 << 20
LETTERS = string.ascii_uppercase + string.ascii_lowercase


def _halve(folder: Path) -> None:
    """Store the weights of a model as bfloat16."""
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))


@dataclass
class LetterModels:
    """Names are m0, m1 …; m3-0 and m3-1 are adapters of m3. letters: by name of model or adapter.

    Parameters are bfloat16.
    """

    root: Path
    letters: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(
        cls, root: Path, count: int, with_adapters: Iterable[int], adapters_each: int, size: str = "small"
    ) -> LetterModels:
        """Files below `root`; those that are there already are left as they are."""
        made, letters = cls(root), iter(LETTERS)
        for number in range(count):
            name, made.letters[f"m{number}"] = f"m{number}", next(letters)
            made.folders[name] = str(root / name)
            if not (root / name).exists():
                _halve(let_say(tiny_llama(root / name, seed=number, **SIZES[size]), made.letters[name]))
        for number in with_adapters:
            for i in range(adapters_each):
                base, name = f"m{number}", f"m{number}-{i}"
                made.letters[name], made.adapters[name] = next(letters), str(root / name)
                if not (root / name).exists():
                    Voices(root / base, louder=30).adapter(root / name, made.letters[name])
        return made

    def settings(self, names: Iterable[str], pinned: str, budget: int, aliases: dict[str, str]) -> dict[str, Any]:
        """The content of the file of --config: the pinned model is loaded at the start, the others on demand."""
        names = list(names)
        on_demand = {"load": "on-demand", "keep_alive": "60s"}
        return {
            "memory-budget": budget,
            "kv-cache-memory-bytes": KV_BYTES,
            "max-num-seqs": 32,
            "device": "cpu",
            "enable-lora": True,
            "weights-cache": str(self.root / "weights-cache"),
            "lora-modules": [
                json.dumps({"name": name, "path": path, "base_model_name": name.split("-")[0]})
                for name, path in self.adapters.items()
                if name.split("-")[0] in names
            ],
            "model-aliases": aliases,
            "models": [
                {"name": name, "model": self.folders[name], **({"pinned": True} if name == pinned else on_demand)}
                for name in names
            ],
        }
