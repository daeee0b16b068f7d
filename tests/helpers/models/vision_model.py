"""A model that sees: a tiny Llama with a tower of one matrix, and a mapper of the colours of four places."""

import base64
import io
import json

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from quire_testing import tiny_llama

PLACE = 262
"""Stands for a patch in prompts."""

NUM_PATCHES = 4

PLUGIN = f"""
    from dataclasses import dataclass

    from quire_models.loading import weight_names as names
    from quire_plugins.architectures.llama import decoder


    @dataclass(frozen=True)
    class Colours:
        def build(self, width, builder):
            import torch

            class Tower(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.proj = builder.projection(3, width, bias=True)

                def forward(self, items, call):
                    counts = [len(item["patches"]) for item in items]
                    patches = torch.cat([item["patches"] for item in items])
                    return list(self.proj(patches, call.context(counts)).split(counts))

            return Tower()


    class MapsColours:
        def __init__(self, context):
            pass

        def map(self, item):
            import numpy as np
            import torch

            assert item.mode == "RGB"
            patches = torch.from_numpy(np.array(item.resize((2, 2), 0))).reshape({NUM_PATCHES}, 3) / 255.0
            return MappedMedia([{PLACE}] * {NUM_PATCHES}, {{"patches": patches}})


    @hookimpl
    def quire_architectures():
        table = names.LLAMA | names.WeightsMapper((("patch_embed", "tower.proj"),))
        yield Architecture("SeesLlamaForCausalLM", decoder, table, tower=lambda c: Colours())


    @hookimpl
    def quire_input_mappers():
        yield InputMapper("colours/image", "SeesLlamaForCausalLM", "image", MapsColours)
"""


def tiny_seeing_model(folder, **settings):
    """Write the model, for the plugin above; gives the folder."""
    tiny_llama(folder, **settings)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    tensors["patch_embed.weight"] = 4 * torch.randn(64, 3, generator=generator)
    tensors["patch_embed.bias"] = torch.randn(64, generator=generator)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["SeesLlamaForCausalLM"]}))
    return folder


def png(colour="red", size=(8, 6)):
    """The bytes of a picture."""
    data = io.BytesIO()
    Image.new("RGB", size, colour).save(data, "PNG")
    return data.getvalue()


def data_url(data):
    """The URL that holds these bytes."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def asking(*parts):
    """A conversation of one message: strings are texts, {"url": …} pictures."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image_url", "image_url": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]
