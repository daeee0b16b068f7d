"""The model that an adapter belongs to, built by its config.json. No weight is read and no memory is taken for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quire import hub
from quire.engine.architectures.choice import find_architecture
from quire.engine.architectures.description import Description
from quire.engine.pooling.pooling_config import choose_pooling
from quire.hooks.demos import from_demo
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire_kernels import select
from quire_models.loading import checkpoint
from quire_models.loading.weight_names import WeightsMapper
from quire_models.model_part import ModelPart
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.builder import ModuleBuilder

PLACEHOLDER = 1e-3
"""The number in place of each weight, here and in adapters of which only the shapes are known.

It is not 0, so that norms of weights (DoRA) are not 0 either.
"""


@dataclass(frozen=True)
class BaseModel:
    """A model without its weights. module: each parameter is one number, expanded to the parameter's shape."""

    files: hub.ModelFiles
    decoder: ModelPart
    names: WeightsMapper
    module: DecoderModel

    @property
    def folder(self) -> Path:
        return self.files.folder


def read_base(model: str, registry: Registry) -> BaseModel:
    """The model of a folder, a hub id, a GGUF file or a demo's name.

    Raises ConfigError and CheckpointError if there is none, UnknownArchitecture, and PluginError.
    """
    config = from_demo(ModelConfig(model=model), registry)
    files = hub.locate(config.model, config)
    parsed = checkpoint.read_config(files.folder)
    architecture = find_architecture(parsed.architectures, registry)
    description = Description(architecture, parsed, registry.plugin_of("quire_architectures", architecture.name))
    decoder, tower = description.decoder(), description.tower()
    builder = ModuleBuilder(select.reference(), torch.float32, torch.device("meta"))
    module: Any = decoder.build(builder)
    if tower is not None:
        module.tower = tower.build(decoder.row_width, builder.for_many_rows())
    pooling = choose_pooling(config, description.pooling(), decoder, parsed, files.folder)
    for name, head in pooling.own_heads.items():
        module.heads[name] = head.build(decoder.width, builder)
    _replace_parameters(module)
    return BaseModel(files, decoder, description.names(), module)


def _replace_parameters(module: nn.Module) -> None:
    """Replace the parameters, which are on the meta device, by placeholders on the CPU."""
    made: dict[int, nn.Parameter] = {}
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in made:
                number = torch.tensor(PLACEHOLDER).expand(parameter.shape)
                made[id(parameter)] = nn.Parameter(number, requires_grad=False)
            child.register_parameter(name, made[id(parameter)])
