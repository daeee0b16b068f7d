"""Builds the modules of a model, or of a rank's part of it, and fills them with weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quire.engine.loading.op_choice import dtype_name
from quire.engine.loading.weight_source import WeightSource
from quire.engine.memory.system_memory import free_bytes
from quire.engine.pooling.pooling_config import PoolingConfig
from quire.engine.quantization.at_load import quantize_modules, spare_modules
from quire.engine.weights_cache.packed_weights import packed_weights
from quire.errors import NoMemory
from quire_models.loading import weights
from quire_models.model_part import ModelPart
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.decoder import Part
from quire_models.towers.tower import attach_tower


@dataclass(frozen=True)
class ModuleSize:
    """The size of a model's weights in the dtype that it runs in, or of its files if they are quantized."""

    num_parameters: int
    num_bytes: int


@dataclass(frozen=True)
class ModelParts:
    """The parts that a model is built from."""

    decoder: ModelPart
    tower: Part | None
    pooling: PoolingConfig


def _assemble(parts: ModelParts, builder: ModuleBuilder) -> DecoderModel:
    decoder, plain = parts.decoder, builder.unquantized()
    module = decoder.build(builder)
    if parts.tower is not None and getattr(decoder, "has_tower", True):  # one stage of several may need none
        attach_tower(module, parts.tower.build(decoder.row_width, plain.for_many_rows()))
    for name, head in parts.pooling.own_heads.items():
        module.heads[name] = head.build(decoder.width, plain)
    return module


def build_module(
    parts: ModelParts, builder: ModuleBuilder, source: WeightSource, max_bytes: int | None, whole: ModelPart
) -> tuple[DecoderModel, ModuleSize]:
    """The filled module, and its size. Errors are looked for on the meta device first, before memory is allocated."""
    on_meta = ModuleBuilder(builder.ops, builder.dtype, torch.device("meta"))
    plan = _assemble(replace(parts, decoder=whole), on_meta)
    files, names = source.files(), source.names
    if files is not None:
        weights.check(plan, whole, names, files)
    is_whole = parts.decoder is whole
    own = plan if is_whole else _assemble(parts, replace(on_meta, shared={}))
    need = sum(parameter.numel() * parameter.element_size() for parameter in own.parameters())
    if files is not None and (source.stored_as or source.located.gguf):
        need = min(need, sum(file.stat().st_size for file in files.files))
    available = available_bytes(builder.device) if max_bytes is None else max_bytes
    if need > available:
        raise NoMemory(
            f"{source.located.folder}: the weights need {need / 2**30:.1f} GiB in {dtype_name(builder.dtype)}, "
            f"but only {available / 2**30:.1f} GiB of memory are available on {builder.device}."
        )
    module = _assemble(parts, builder)
    attached = source.shard.attach(plan, module)
    quantize_modules(module, source.linear_at)
    spare_modules(module, names, source.config.quantization_ignore)
    if files is None:
        attached.randomize(module)
    else:
        cache = packed_weights(source, files, builder)
        files, names = attached.files(files, names, whole, module)
        weights.load(module, parts.decoder, names, files, source.on_progress, cache.restore, is_checked=is_whole)
        cache.store(module)
    parts.pooling.add_sentence_head(module, builder.unquantized())
    module = module.eval().requires_grad_(False)
    if callable(verify := getattr(module, "verify", None)):
        verify()
    size = ModuleSize(sum(parameter.numel() for parameter in plan.parameters()), need)
    for part in list(plan.modules()) if is_whole else ():  # else the shard has it
        vars(part).clear()  # they refer to themselves: the garbage collector would free them late
    return module, size


def available_bytes(device: torch.device) -> int:
    """Free memory of a device in bytes; for the CPU what this process can still allocate."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()
