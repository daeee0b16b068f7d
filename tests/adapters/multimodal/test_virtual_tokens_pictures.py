"""Virtual tokens before prompts with pictures: tokens are those of transformers on the same embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, rig_of
from llava_rig import CASES, Model, picture
from safetensors.torch import save_file
from torch import Tensor
from virtual_tokens_rig import FOUND, using

from quire.types import Prompt

COUNT = 6


def write(folder: Path, kind: str, rows: Tensor) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "num_virtual_tokens": len(rows)}))
    save_file({"prompt_embeddings": rows}, folder / "adapter_model.safetensors")
    return folder


@torch.inference_mode()
def logits(model: Model, prompt: Prompt, pictures: list[Any], rows: Tensor | None, keys: Tensor | None) -> Tensor:
    """[tokens, vocab] of a prompt, by transformers, after rows of embeddings or keys and values of two layers."""
    from transformers import DynamicCache

    seen: dict[str, Tensor] = {}
    text = model.reference.model.language_model
    hook = text.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(x=kwargs["inputs_embeds"]), with_kwargs=True
    )
    model.logits(prompt, *pictures)
    hook.remove()
    x, cache = seen["x"], None
    if rows is not None:
        x = torch.cat([rows[None], x], 1)
    if keys is not None:
        layers = keys.view(COUNT, 4, 2, 16).permute(1, 2, 0, 3)[:, None]
        cache = DynamicCache([(layers[2 * i], layers[2 * i + 1]) for i in range(2)])
    hidden = text(inputs_embeds=x, past_key_values=cache, use_cache=cache is not None).last_hidden_state[0]
    found: Tensor = model.reference.lm_head(hidden[-len(prompt.token_ids) :])
    return found


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 64}])
def test_tokens_before_pictures_are_those_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    model, generator = Model(tmp_path / "model", CASES["1.5"]), torch.Generator().manual_seed(1)
    rows, keys = torch.randn(COUNT, 64, generator=generator), torch.randn(COUNT, 128, generator=generator)
    paths = {"rows": write(tmp_path / "rows", "PROMPT_TUNING", rows)}
    paths["keys"] = write(tmp_path / "keys", "PREFIX_TUNING", keys)
    pictures = [picture(1), picture(2)]
    with rig_of(model.folder, FOUND, **settings) as rig:
        for name, path in paths.items():
            rig.engine.load_adapter(name, path)
        prompt = model.prompt(FOUND, rig.engine.info, "a <image> or <image>?", *pictures)
        asked = {
            (name, i): rig.add(prompt, greedy(6, ignore_eos=True), adapters=using(name))
            for i in range(2)
            for name in (None, "rows", "keys")
        }
        answers = rig.drain()
    for (name, _), request_id in asked.items():
        tokens = answers[request_id, 0].token_ids
        whole = Prompt(token_ids=(*prompt.token_ids, *tokens))
        ours = rows if name == "rows" else None, keys if name == "keys" else None
        wanted = logits(model, whole, pictures, *ours)[len(prompt.token_ids) - 1 : -1]
        assert wanted.argmax(-1).tolist() == tokens, name
