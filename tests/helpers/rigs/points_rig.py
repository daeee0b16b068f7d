"""A plugin with a modality of its own, points, each a vector of three; and a tiny model that takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from engine_rig import Rig, greedy
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from quire import Architecture, InputMapper
from quire.errors import BadRequest
from quire.hooks import registry
from quire.records import Context, MappedMedia, Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_models import Items, TowerCall
from quire_models.loading import weight_names as names
from quire_testing.tiny import tiny_llama

PLACE = 262
"""Stands for a point in prompts."""


@dataclass(frozen=True)
class PointTower:
    size: int

    def build(self, width: int, builder: Any) -> nn.Module:
        return Points(self.size, width, builder)


class Points(nn.Module):
    runs = calls = 0

    def __init__(self, size: int, width: int, builder: Any) -> None:
        super().__init__()
        self.proj = builder.projection(size, width, bias=True)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        Points.calls += 1
        Points.runs += len(items)
        points = torch.cat([item["points"] for item in items])
        if bool(points.isnan().any()):
            raise ArithmeticError("a point lies nowhere")
        counts = [len(item["points"]) for item in items]
        rows = self.proj(points, call.context(counts)).split(counts)
        return [
            some[: 1 if bool((item["points"] == 13).any()) else None] for some, item in zip(rows, items, strict=True)
        ]


class MapsPoints:
    def __init__(self, context: Context) -> None:
        self.size = context.config["point_size"]

    def map(self, item: Tensor) -> MappedMedia:
        if item.ndim != 2 or item.shape[1] != self.size:
            raise BadRequest(f"Points have {self.size} numbers.", "prompts")
        return MappedMedia([PLACE] * len(item), {"points": item})


def points_registry(tower: Any = lambda c: PointTower(c.point_size), **mapper: Any) -> Registry:
    found = registry.load(None)
    llama = found.by_hook("quire_architectures")["LlamaForCausalLM"]
    table = llama.names | names.WeightsMapper((("point_embed", "tower.proj"),))
    made = Architecture("PointsForCausalLM", llama.decoder, table, tower)
    maps = InputMapper("made/points", made.name, "points", **{"build": MapsPoints, **mapper})
    more = {"quire_architectures": {made.name: made}, "quire_input_mappers": {maps.name: maps}}
    return replace(
        found,
        records={**found.records, **{hook: {**found.by_hook(hook), **some} for hook, some in more.items()}},
        origin={**found.origin, **{(hook, name): "made" for hook, some in more.items() for name in some}},
    )


def points_folder(folder: Path) -> Path:
    tiny_llama(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    tensors["point_embed.weight"] = torch.randn(64, 3, generator=generator)
    tensors["point_embed.bias"] = torch.randn(64, generator=generator)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["PointsForCausalLM"], "point_size": 3}))
    return folder


def cloud(seed: int, count: int) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def prompt_of(inputs: MultimodalProcessor, folder: Path, text: str, *clouds: Tensor) -> Prompt:
    value = {"prompt": text, "multi_modal_data": {"points": list(clouds)}}
    return to_prompt(value, Tokenizer.load(folder), multimodal=inputs)


def run(rig: Rig, prompts: Sequence[Prompt], **params: Any) -> list[list[int]]:
    ids = [rig.add(prompt, greedy(8, ignore_eos=True, **params)) for prompt in prompts]
    answers = rig.drain()
    for request_id in ids:
        assert answers[request_id, 0].last.finish_reason == "length", answers[request_id, 0].last
    return [answers[request_id, 0].token_ids for request_id in ids]


@torch.inference_mode()
def expected(reference: tuple[LlamaForCausalLM, nn.Linear], prompt: Prompt, count: int) -> list[tuple[int, float]]:
    """Greedy tokens and their log-probabilities, computed the simplest way."""
    model, linear = reference
    embeds = model.get_input_embeddings()(torch.tensor([prompt.token_ids]))
    for item in prompt.media:
        embeds[0, item.start : item.start + item.length] = linear(item.tensors["points"])
    chosen = []
    for _ in range(count):
        logprobs = model(inputs_embeds=embeds).logits[0, -1].log_softmax(-1)
        token = int(logprobs.argmax())
        chosen.append((token, float(logprobs[token])))
        embeds = torch.cat([embeds, model.get_input_embeddings()(torch.tensor([[token]]))], 1)
    return chosen
