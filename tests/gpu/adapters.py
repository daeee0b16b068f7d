"""Adapters on a device: rows with and without them in one batch answer as peft does, captured and not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from engines import Client, engine_of, is_captured
from lora_rig import Base, random_seqs

TARGETS = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
    "all": ["q_proj", "v_proj", "up_proj", "down_proj"],
    "table": ["embed_tokens", "q_proj"],
}
SETTINGS = {"dtype": "float32", "num_pages": 64, "max_model_len": 96, "max_num_seqs": 8, "max_loras": 6}
NEW_TOKENS = 16


def run(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        base = Base(Path(name) / "base", "LlamaForCausalLM")
        folders = {
            each: base.adapter(each, r=8, lora_alpha=16, target_modules=modules) for each, modules in TARGETS.items()
        }
        prompts = random_seqs(6)
        for names in (["attention", None, "mlp", "all", "attention", None], ["table", "all"]):
            used = list(zip(names, prompts, strict=False))
            wanted = [base.greedy(each and folders[each], prompt, NEW_TOKENS) for each, prompt in used]
            for enforce_eager in (False, True):
                with (
                    torch.inference_mode(),
                    engine_of(base.folder, device, **SETTINGS, enforce_eager=enforce_eager) as engine,
                ):
                    for each, folder in folders.items():
                        engine.load_adapter(each, folder)
                    client = Client(engine)
                    answers = client.ended([client.add(prompt, NEW_TOKENS, adapter=each) for each, prompt in used])
                    case = f"{'+'.join(str(each) for each in names)}, {'eager' if enforce_eager else 'graphs'}"
                    found[case] = {"ok": answers == wanted, "captured": is_captured(engine)}
    return found
