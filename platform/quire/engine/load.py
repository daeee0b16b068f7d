"""Turns a `ModelConfig` into a model ready to run: folder, config, plugin's decoder, ops, weights.

It knows no architecture (the registry does) and nothing of pages: `info.num_pages` stays 0 until the
engine has measured how many fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire import hub
from quire.config import ModelConfig
from quire.counting import naming_plugin
from quire.engine.description import Description
from quire.engine.ops_choice import choose_ops, dtype_name, needed_ops, op_query
from quire.engine.pooling import PoolingChoice, choose_pooling
from quire.engine.quantization import choose_linear
from quire.engine.source_choice import most_positions, source_info
from quire.engine.speech import with_speech
from quire.engine.system_memory import free_bytes
from quire.errors import CheckpointError, ConfigError, PluginError, UnknownArchitecture
from quire.records import Architecture, Registry
from quire.types import ModelInfo
from quire_kernels.select import Ops
from quire_models import checkpoint, tensors, weights
from quire_models.blocks import DecoderModel
from quire_models.make import Make
from quire_models.names import Names
from quire_models.parts import Decoder, Part
from quire_models.poolers import Pooling

_DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
    "float64": torch.float32,
}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model in memory, and what its folder says of it.

    kv_dtype: dtype of K and V. config: the parsed config.json. names: the table from the checkpoint's names.
    ops: the chosen operations, whose `report` says why. info: without the number of pages. pooling: what it gives
    beside text. weight_bytes: of the weights in `dtype`; what is kept in fewer bits takes less.
    """

    module: DecoderModel
    decoder: Decoder
    config: Any
    names: Names
    info: ModelInfo
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    eos_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, Any]
    ops: Ops
    pooling: Pooling
    weight_bytes: int


def load_model(config: ModelConfig, registry: Registry, room: int | None = None) -> Loaded:
    """Find, check, build and fill the model that `config` names.

    room: bytes of device memory that the weights may take, None = what is free now.
    Raises ConfigError for a setting that cannot be met, UnknownArchitecture when no plugin builds the
    model, CheckpointError when its folder cannot be used or its weights do not fit in memory, PluginError when code of
    a plugin raises.
    """
    with naming_plugin(registry, f"{config.name} was loaded"):
        return _load(config, registry, room)


def _load(config: ModelConfig, registry: Registry, room: int | None) -> Loaded:
    device = choose_device(config.device)
    folder = hub.resolve(config.model, config)
    parsed = checkpoint.read_config(folder, config.trust_remote_code)
    architecture = find_architecture(parsed.architectures, registry)
    _refuse_quantized(folder)
    modalities = _modalities(architecture, registry)
    dtype = choose_dtype(config.dtype, checkpoint.checkpoint_dtype(folder), device)
    generation = checkpoint.read_generation(folder, parsed)
    defaults = choose_defaults(config, generation.sampling_defaults)
    described = Description(architecture, parsed, registry)
    decoder, names, own = described.decoder(), described.names(), described.pooling()
    tower = described.tower()
    pooling = choose_pooling(config, own, decoder, parsed, folder)
    of_model = most_positions(checkpoint.max_length(parsed), decoder)
    max_model_len = choose_length(config.max_model_len, of_model, pooling.max_length)
    head_dims = tuple({shape.head_dim for shape in decoder.kv_shapes})
    needs = needed_ops(architecture.needs_ops, decoder)
    query = op_query(
        device, dtype, page_size=config.page_size, head_dims=head_dims, kv_dtype=config.kv_cache_dtype, needs=needs
    )
    ops = choose_ops(query, registry)
    source = _Source(folder, config.load_format, names)
    linear = choose_linear(config.quantization, registry, query, ops)
    make = Make(ops, dtype, device, linear=linear, keep_weights=False)
    module, size = _build(Described(decoder, tower, pooling), make, source, room)
    info = ModelInfo(
        name=config.name,
        aliases=tuple(config.served_model_name[1:]),
        root=config.model,
        folder=str(folder),
        architecture=architecture.name,
        dtype=dtype_name(dtype),
        device=str(device),
        max_model_len=max_model_len,
        vocab_size=decoder.vocab,
        eos_ids=generation.eos_ids,
        num_pages=0,
        page_size=config.page_size,
        num_parameters=size.num_parameters,
        sampling_defaults=defaults,
        modalities=modalities,
        tasks=with_speech(pooling.tasks, architecture.name, modalities, registry),
        embedding_size=pooling.embedding_size,
        dimensions=pooling.pooling.dimensions,
        labels=pooling.labels,
        token_types=decoder.has_token_types,
        position_axes=decoder.position_axes,
        source=source_info(decoder, modalities, architecture.name, config.page_size, max_model_len),
        max_logprobs=config.max_logprobs,
    )
    return Loaded(
        module=module,
        decoder=decoder,
        config=parsed,
        names=names,
        info=info,
        device=device,
        dtype=dtype,
        kv_dtype=torch.int8 if config.kv_cache_dtype == "int8" else dtype,
        eos_ids=generation.eos_ids,
        sampling_defaults=defaults,
        ops=ops,
        pooling=pooling.pooling,
        weight_bytes=size.num_bytes,
    )


def choose_device(wanted: str) -> torch.device:
    """auto, cpu or cuda as a device; raises ConfigError for a GPU that is not there."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu or auto.")
    return torch.device("cuda", 0) if wanted != "cpu" and present else torch.device("cpu")


def choose_dtype(wanted: str, of_checkpoint: str | None, device: torch.device) -> torch.dtype:
    """The dtype to run in. auto: the checkpoint's own, but float32 becomes bfloat16 on a GPU."""
    if wanted != "auto":
        return _DTYPES[wanted]
    name = of_checkpoint or "float32"
    if name not in _DTYPES:
        raise CheckpointError(f"The checkpoint's dtype {name} cannot be run; choose another with --dtype.")
    dtype = _DTYPES[name]
    return torch.bfloat16 if dtype == torch.float32 and device.type == "cuda" else dtype


def choose_length(wanted: int | None, of_model: int | None, usual: int | None = None) -> int:
    """The longest seq to serve; raises ConfigError beyond what the model was made for.

    usual: what its embeddings were trained with, if that is less.
    """
    if of_model is None and wanted is None:
        raise ConfigError("The model's config does not say how long its context is; set --max-model-len.")
    if wanted is not None and of_model is not None and wanted > of_model:
        raise ConfigError(f"--max-model-len may be at most {of_model} for this model, got {wanted}.")
    return wanted or min(length for length in (of_model, usual) if length is not None)


def choose_defaults(config: ModelConfig, of_model: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults: the override wins over the model's, which `--generation-config none` drops."""
    override = dict(config.override_generation_config)
    if "max_new_tokens" in override:
        override["max_tokens"] = override.pop("max_new_tokens")
    unknown = sorted(override.keys() - checkpoint.SAMPLING_DEFAULTS)
    if unknown:
        allowed = ", ".join(sorted(checkpoint.SAMPLING_DEFAULTS))
        raise ConfigError(f"--override-generation-config cannot set {', '.join(unknown)}; it can set {allowed}.")
    try:
        checkpoint.check_defaults(override, "--override-generation-config")
    except CheckpointError as error:
        raise ConfigError(error.message) from error
    return {**({} if config.generation_config == "none" else of_model), **override}


def find_architecture(wanted: list[str], registry: Registry) -> Architecture:
    """The first of config.json's `architectures` that a plugin builds."""
    known = registry.of("quire_architectures")
    for name in wanted:
        if name in known:
            found: Architecture = known[name]
            return found
    raise UnknownArchitecture(f"No loaded plugin can build {', '.join(wanted)}.", ",".join(wanted))


def _refuse_quantized(folder: Path) -> None:
    method = checkpoint.quantization(folder)
    if method is not None:
        raise CheckpointError(
            f"{folder} holds weights quantized with {method}, which cannot be read; use the original."
        )


@dataclass(frozen=True)
class _Source:
    """Where the weights come from."""

    folder: Path
    load_format: str
    names: Names


@dataclass(frozen=True)
class _Size:
    """Of a model's weights, in the data type it runs in."""

    num_parameters: int
    num_bytes: int


@dataclass(frozen=True)
class Described:
    """What a model is to be made of."""

    decoder: Decoder
    tower: Part | None
    pooling: PoolingChoice


def _assemble(parts: Described, make: Make) -> DecoderModel:
    decoder, plain = parts.decoder, make.unquantised()
    module = decoder.build(make)
    if parts.tower is not None:
        module.tower = parts.tower.build(decoder.row_width, plain.for_many_rows())
    for name, head in parts.pooling.own_heads.items():
        module.heads[name] = head.build(decoder.width, plain)
    return module


def _build(parts: Described, make: Make, source: _Source, room: int | None) -> tuple[DecoderModel, _Size]:
    """The filled module, and its size. What can be wrong is looked for on the meta device first."""
    decoder = parts.decoder
    plan = _assemble(parts, Make(make.ops, make.dtype, torch.device("meta")))
    if source.load_format != "dummy":
        weights.check(plan, decoder, source.names, tensors.find(source.folder, source.load_format))
    need = sum(parameter.numel() * parameter.element_size() for parameter in plan.parameters())
    room = available_bytes(make.device) if room is None else room
    if need > room:
        raise CheckpointError(
            f"{source.folder}: the weights need {need / 2**30:.1f} GiB in {dtype_name(make.dtype)}, "
            f"but only {room / 2**30:.1f} GiB of memory are available on {make.device}."
        )
    module = _assemble(parts, make)
    weights.load(module, decoder, source.names, source.folder, source.load_format)
    parts.pooling.add_sentence_head(module, make.unquantised())
    count = sum(parameter.numel() for parameter in plan.parameters())
    return module.eval().requires_grad_(False), _Size(count, need)


def available_bytes(device: torch.device) -> int:
    """Free memory of a device; for the CPU what this process can still take of the machine's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()


def _modalities(architecture: Architecture, registry: Registry) -> tuple[str, ...]:
    """What the model takes beside text: what is mapped for it. Raises PluginError if rows can come from nowhere."""
    mappers = [m for m in registry.all("quire_input_mappers") if m.architecture == architecture.name]
    if mappers and architecture.tower is None:
        plugin = registry.plugin_of("quire_input_mappers", mappers[0].name)
        raise PluginError(
            f"Plugin {plugin!r} maps {mappers[0].modality} for {architecture.name}, an architecture without a tower."
        )
    return tuple(dict.fromkeys(mapper.modality for mapper in mappers))
