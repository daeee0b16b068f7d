"""Tiny random Phi-3-vision models in the published format, and a reference made of transformers' CLIP and Phi-3.

transformers has no class for the whole: what lies between the halves (crops, squares of patches, ends of lines) is
written here once more, as plainly as can be.
"""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import END_ID, VOCAB_SIZE, byte_tokenizer

SIDE, PATCH, WIDTH, SEEN, CROPS = 28, 7, 64, 48, 4
ROOT = "model.vision_embed_tokens"

ROPE = {"type": "su", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], "long_factor": [2.0] * 8}

CONFIG: dict[str, Any] = {
    "architectures": ["Phi3VForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_phi3_v.Phi3VConfig"},
    "model_type": "phi3_v",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": ROPE,
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": END_ID,
    "embd_layer": {
        "embedding_cls": "image",
        "hd_transform_order": "sub_glb",
        "projection_cls": "mlp",
        "use_hd_transform": True,
        "with_learnable_separator": True,
    },
    "img_processor": {
        "name": "clip_vision_model",
        "image_dim_out": SEEN,
        "num_img_tokens": 4,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
    },
}


class Model:
    """A tiny model in a folder, and its reference."""

    def __init__(self, folder: Path) -> None:
        from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM

        torch.manual_seed(0)
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        more = ("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "original_max_position_embeddings")
        rope = {
            **{name: value for name, value in ROPE.items() if name != "type"},
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 512,
        }
        text = Phi3Config(
            **{name: CONFIG[name] for name in names + more},
            rope_parameters=rope,
            pad_token_id=0,
            attn_implementation="eager",
        )
        seen = {
            name: value for name, value in CONFIG["img_processor"].items() if name not in ("name", "num_img_tokens")
        }
        seen["hidden_size"] = seen.pop("image_dim_out")
        self.folder = folder
        self.text = Phi3ForCausalLM(text).eval()
        self.clip = CLIPVisionModel(CLIPVisionConfig(**seen, attn_implementation="eager")).eval()
        self.projection = nn.Sequential(nn.Linear(4 * SEEN, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.newline, self.separator = torch.randn(4 * SEEN), torch.randn(4 * SEEN)
        for part in (self.text, self.clip, self.projection):
            for parameter in part.parameters():
                parameter.data += 0.05 * torch.randn_like(parameter)
        self._save()

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(CONFIG))
        (self.folder / "preprocessor_config.json").write_text(json.dumps({"num_crops": CROPS}))
        byte_tokenizer(self.folder)
        seen = {f"vision_model.{name.removeprefix('vision_model.')}": t for name, t in self.clip.state_dict().items()}
        tensors = {
            **self.text.state_dict(),
            **{f"{ROOT}.img_processor.{name}": tensor for name, tensor in seen.items()},
            **{f"{ROOT}.img_projection.{name}": tensor for name, tensor in self.projection.state_dict().items()},
            f"{ROOT}.sub_GN": self.newline.view(1, 1, 1, -1),
            f"{ROOT}.glb_GN": self.separator.view(1, 1, -1),
        }
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self.folder / "model.safetensors")

    def prompt(self, found: Registry, info: ModelInfo, text: str, *pictures: Image.Image) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        value = {"prompt": text, "multi_modal_data": {"image": list(pictures)}} if pictures else text
        return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    @torch.inference_mode()
    def rows(self, picture: Image.Image) -> Tensor:
        """[rows, width] of a picture: the lines of its crops, the separator, the lines of the whole."""
        whole, crops = cropped(picture)
        lines, columns = len(crops), len(crops[0])
        half = SIDE // PATCH // 2
        seen = [[self._squares(crop) for crop in line] for line in crops]
        rows = []
        for y in range(lines * half):
            for x in range(columns * half):
                rows.append(seen[y // half][x // half][y % half][x % half])
            rows.append(self.newline)
        rows.append(self.separator)
        for line in self._squares(whole):
            rows += [*line, self.newline]
        return self.projection(torch.stack(rows))

    def _squares(self, pixels: Tensor) -> list[list[Tensor]]:
        """Four neighbouring patches side by side: by line and column."""
        states = self.clip(pixels[None], output_hidden_states=True).hidden_states[-2][0, 1:]
        side = SIDE // PATCH
        patch = [[states[y * side + x] for x in range(side)] for y in range(side)]
        return [
            [torch.cat([patch[y][x], patch[y][x + 1], patch[y + 1][x], patch[y + 1][x + 1]]) for x in range(0, side, 2)]
            for y in range(0, side, 2)
        ]

    @torch.inference_mode()
    def embeds(self, prompt: Prompt, *pictures: Image.Image) -> Tensor:
        """[1, tokens, width]."""
        embeds = self.text.model.embed_tokens(torch.tensor([prompt.token_ids])).clone()
        for medium, picture in zip(prompt.media, pictures, strict=True):
            embeds[0, medium.start : medium.start + medium.length] = self.rows(picture)
        return embeds

    @torch.inference_mode()
    def logits(self, prompt: Prompt, *pictures: Image.Image) -> Tensor:
        """[tokens, vocab]."""
        logits: Tensor = self.text(inputs_embeds=self.embeds(prompt, *pictures)).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: Prompt, *pictures: Image.Image, count: int = 16) -> list[int]:
        made = self.text.generate(
            inputs_embeds=self.embeds(prompt, *pictures),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens: list[int] = made[0].tolist()
        return tokens


def cropped(picture: Image.Image) -> tuple[Tensor, list[list[Tensor]]]:
    """The whole and the crops by line and column, normalised."""
    turned = picture.width < picture.height
    if turned:
        picture = picture.transpose(Image.Transpose.TRANSPOSE)
    ratio, count = picture.width / picture.height, 1
    while (count + 1) * ceil((count + 1) / ratio) <= CROPS:
        count += 1
    width = count * SIDE
    height = max(1, int(width / ratio))
    canvas = Image.new("RGB", (width, ceil(height / SIDE) * SIDE), "white")
    canvas.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (0, (canvas.height - height) // 2))
    if turned:
        canvas = canvas.transpose(Image.Transpose.TRANSPOSE)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = torch.from_numpy(((np.asarray(canvas) / 255 - mean) / std).transpose(2, 0, 1)).float()
    whole = torch.nn.functional.interpolate(pixels[None], size=(SIDE, SIDE), mode="bicubic")[0]
    lines, columns = canvas.height // SIDE, canvas.width // SIDE
    return whole, [
        [pixels[:, y * SIDE : (y + 1) * SIDE, x * SIDE : (x + 1) * SIDE] for x in range(columns)] for y in range(lines)
    ]
