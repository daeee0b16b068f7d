"""LoRA on blocks and merger of a windowed tower and on the decoder at once, in one batch; peft is the oracle."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, rig_of
from qwen_vl_rig import TWO, TWO_AND_A_HALF, Asked, Tiny, expected, film, picture, tiny

from quire.hooks import registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import AdapterRef, WeightedAdapter

SEEING = r".*visual\.(blocks\.\d\.(attn\.(qkv|proj)|mlp\.(fc\d|\w+_proj))|merger\.mlp\.[02])"
READING = r".*language_model.*\.(q_proj|v_proj|o_proj|gate_proj|down_proj)"
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 6, "target_modules": f"{SEEING}|{READING}"},
    "windows": {"r": 3, "lora_alpha": 6, "target_modules": r".*visual\.blocks\.0\.attn\.qkv", "use_dora": True},
    "text": {"r": 5, "lora_alpha": 10, "target_modules": READING},
}
TEXTS = [
    Asked("What is <|image_pad|>?", [picture(1, 24, 40)]),
    Asked("<|image_pad|> or <|video_pad|>.", [picture(9, 16, 48)], [film(2, 4, 32, 24)]),
]


def adapted(made: Tiny, folder: Path, seed: int, settings: dict[str, Any]) -> Tiny:
    """The model with an adapter of random numbers at work, which lies in `folder`."""
    from peft import LoraConfig, get_peft_model

    fresh = type(made.model).from_pretrained(made.folder, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = get_peft_model(fresh, LoraConfig(**settings)).eval()
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "lora_magnitude" in path:
                parameter.mul_(1 + 0.3 * noise)
            elif "lora_" in path:
                parameter.copy_(0.7 * noise / parameter.shape[-1] ** 0.5)
        model.save_pretrained(folder)
    return Tiny(model.get_base_model(), folder)


@pytest.mark.parametrize("architecture", [TWO, TWO_AND_A_HALF])
def test_adapters_of_all_parts_give_what_peft_gives_beside_the_base(architecture: str, tmp_path: Path) -> None:
    base = tiny(architecture, tmp_path / "base")
    kinds = {name: adapted(base, tmp_path / name, i, ADAPTERS[name]) for i, name in enumerate(ADAPTERS)}
    found = registry.load(["qwen-vl"], enable_lora=True)
    with rig_of(base.folder, found, max_num_batched_tokens=29, num_pages=225) as rig:
        inputs = MultimodalProcessor(found, rig.engine.info, Tokenizer.load(base.folder))
        for name in kinds:
            rig.engine.load_adapter(name, tmp_path / name)
        asked = {}
        for name in ("", *kinds):
            uses = (WeightedAdapter(AdapterRef(name=name)),) if name else ()
            for i, one in enumerate(TEXTS):
                prompt = to_prompt(one.value, Tokenizer.load(base.folder), multimodal=inputs)
                params = greedy(16, ignore_eos=True, prompt_logprobs=0)
                asked[name, i] = rig.add(prompt, params, adapters=uses), prompt.token_ids
        answers = rig.drain()
    outputs = set()
    for (name, i), (request_id, ids) in asked.items():
        tokens, logprobs = expected(kinds.get(name, base), TEXTS[i], 16)
        answer = answers[request_id, 0]
        assert answer.token_ids == tokens, (name, i)
        ours = [entry.logprob for entry in answer.deltas[0].prompt_logprobs or () if entry]
        assert ours == pytest.approx(logprobs[range(len(ids) - 1), ids[1:]].tolist(), abs=1e-4), (name, i)
        outputs.add(tuple(tokens))
    assert len(outputs) == len(asked)
