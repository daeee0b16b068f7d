"""Tiny models on disk with quantized weights, and in transformers with the same weights dequantized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from quantized_tensors import Stored
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire import LLM, SamplingParams
from quire_testing.tiny import byte_tokenizer, reference_model, save

TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79]

Store = Callable[[str, tuple[int, int]], Stored | None]
"""How a weight is stored, by its module's name and its shape; None = unquantized."""


class QuantizedModel:
    """A tiny model whose folder holds quantized weights, and its twin in transformers."""

    def __init__(self, folder: Path, architecture: str, store: Store, **overrides: Any) -> None:
        self.folder, dense = folder, folder / "dense"
        model = reference_model(architecture, **overrides)
        save(model, dense)
        whole = load_file(dense / "model.safetensors")
        tensors: dict[str, Tensor] = {}
        for name, weight in whole.items():
            stored = store(name.removesuffix(".weight"), tuple(weight.shape)) if weight.dim() == 2 else None
            if stored is None:
                tensors[name] = weight
            else:
                made = stored.named(name.removesuffix(".weight"))
                whole[name], config = made.weights[name], stored.config
                tensors |= made.tensors
        save_file(whole, dense / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((dense / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
        save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
        byte_tokenizer(folder)
        self.twin = type(model).from_pretrained(dense, dtype=torch.float32, attn_implementation="eager").eval()

    @torch.inference_mode()
    def expected(self) -> Tensor:
        """Log-probabilities [tokens - 1, vocabulary] of each token of `TOKENS` after the first, by transformers."""
        return torch.log_softmax(self.twin(torch.tensor([TOKENS])).logits[0, :-1].double(), -1).float()

    @torch.inference_mode()
    def expected_embedding(self) -> Tensor:
        """The normalized mean of the hidden states of `TOKENS` at the end of an encoder, by transformers."""
        return torch.nn.functional.normalize(self.twin(torch.tensor([TOKENS])).last_hidden_state[0].mean(0), dim=0)

    def embedding(self, **settings: Any) -> Tensor:
        """The embedding of `TOKENS` by Quire."""
        with LLM(str(self.folder), **{"dtype": "float32", "max_model_len": 64, **settings}) as llm:
            (output,) = llm.embed([{"prompt_token_ids": TOKENS}], use_tqdm=False)
        return torch.tensor(output.outputs.embedding)

    def served(self, **settings: Any) -> Tensor:
        """The same by Quire."""
        common = {"dtype": "float32", "max_logprobs": -1, "kv_cache_memory_bytes": 1 << 20, "max_model_len": 64}
        with LLM(str(self.folder), **{**common, **settings}) as llm:
            params = SamplingParams(max_tokens=1, prompt_logprobs=-1, temperature=0)
            output = llm.generate([{"prompt_token_ids": TOKENS}], params, use_tqdm=False)[0]
        rows = [{token: entry.logprob for token, entry in row.items()} for row in output.prompt_logprobs[1:]]
        return torch.tensor([[row[token] for token in range(len(row))] for row in rows])
