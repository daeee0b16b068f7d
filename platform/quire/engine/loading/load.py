"""Turns a `ModelConfig` into a model that is ready to run: folder, config, the plugin's decoder, ops, weights.

The number of pages is not known yet: `info.num_pages` is 0 until the engine has measured how many fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from quire import hub
from quire.engine.architectures.choice import choose_architecture
from quire.engine.architectures.description import Description
from quire.engine.loading.build_module import ModelParts, build_module
from quire.engine.loading.op_choice import choose_ops, dtype_name, needed_ops, op_query
from quire.engine.loading.weight_source import WeightSource
from quire.engine.multimodal.encoder_inputs import encoder_input_info, max_positions
from quire.engine.multimodal.modalities import modalities_of
from quire.engine.multimodal.speech_tasks import with_speech
from quire.engine.pooling.pooling_config import choose_pooling
from quire.engine.quantization.at_load import choose_linear
from quire.engine.quantization.checkpoint_format import stored_format
from quire.engine.quantization.kv_cache import choose_kv_dtype
from quire.errors import CheckpointError, ConfigError
from quire.hooks.call_stats import naming_plugin
from quire.records import ArchitectureQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo
from quire_kernels.select import Ops
from quire_models.loading import checkpoint
from quire_models.loading.weight_names import WeightsMapper
from quire_models.loading.weights import OnProgress
from quire_models.model_part import ModelPart
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.attention import attention_options
from quire_models.parts.pooling import Pooling
from quire_models.sharding.model import WHOLE_MODEL, ModelShard, WholeModel

_DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
    "float64": torch.float32,
}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in memory, and the contents of its folder.

    kv_dtype: dtype of K and V. config: the parsed config.json. names: mapping of the checkpoint's weight names.
    ops: the chosen operations; their `report` gives reasons. info: without the number of pages. pooling: its outputs
    other than text. weight_bytes: size of the weights in `dtype`; quantized weights take less.
    """

    module: DecoderModel
    decoder: ModelPart
    config: Any
    names: WeightsMapper
    info: ModelInfo
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    eos_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, Any]
    ops: Ops
    pooling: Pooling
    weight_bytes: int


def load_model(
    config: ModelConfig,
    registry: Registry,
    max_bytes: int | None = None,
    on_progress: OnProgress = None,
    shard: ModelShard | WholeModel = WHOLE_MODEL,
) -> LoadedModel:
    """Find, check, build and fill the model that `config` names.

    max_bytes: limit of device memory for the weights, None = what is free now. shard: the part of the model to load.
    Raises ConfigError for a setting that cannot work, UnknownArchitecture if no plugin builds the model,
    CheckpointError if its folder cannot be used or its weights do not fit in memory, and PluginError if a plugin fails.
    """
    with naming_plugin(registry, f"{config.name} was loaded"):
        return _load(config, registry, max_bytes, on_progress, shard)


def _load(
    config: ModelConfig,
    registry: Registry,
    max_bytes: int | None,
    on_progress: OnProgress,
    shard: ModelShard | WholeModel,
) -> LoadedModel:
    device = choose_device(config.device)
    located = hub.locate(config.model, config)
    folder = located.folder
    parsed = checkpoint.read_config(folder, config.trust_remote_code, hub.config_cache(config.download_dir))
    query = ArchitectureQuery(tuple(parsed.architectures), parsed, folder, config.trust_remote_code)
    chosen = choose_architecture(config.model_impl, query, registry)
    architecture, modalities = chosen.architecture, modalities_of(chosen, registry)
    dtype = choose_dtype(config.dtype, checkpoint.checkpoint_dtype(folder), device)
    generation = checkpoint.read_generation(folder, parsed)
    defaults = choose_defaults(config, generation.sampling_defaults)
    description = Description(architecture, parsed, chosen.plugin)
    whole, names, own = description.decoder(), description.names(), description.pooling()
    decoder = shard.parts(whole)
    tower = description.tower()
    pooling = choose_pooling(config, own, decoder, parsed, folder)
    of_model = max_positions(checkpoint.max_length(parsed), decoder)
    max_model_len = choose_length(config.max_model_len, of_model, pooling.max_length)
    head_dims = tuple({shape.head_dim for shape in decoder.kv_shapes if shape.head_dim})
    kv_dtype = choose_kv_dtype(config.kv_cache_dtype, dtype, head_dims)
    needs = needed_ops(architecture.needs_ops, decoder)
    op_needs = op_query(
        device,
        dtype,
        page_size=config.page_size,
        head_dims=head_dims,
        kv_dtype=config.kv_cache_dtype,
        needs=needs,
        attention_options=attention_options(decoder.blocks),
        attention_backend=config.attention_implementation,
    )
    ops = choose_ops(op_needs, registry)
    stored_as = stored_format(folder, config, registry, op_needs)
    linear_at = None if stored_as else choose_linear(config, registry, op_needs, ops)
    source = WeightSource(located, config, names, stored_as, linear_at, on_progress, shard)
    linear, bits = linear_at and linear_at(""), config.activation_bits
    builder = ModuleBuilder(ops, dtype, device, linear=linear, keep_weights=False, activation_bits=bits)
    module, size = build_module(ModelParts(decoder, tower, pooling), builder, source, max_bytes, whole)
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
        encoder_input=encoder_input_info(decoder, modalities, architecture.name, config.page_size, max_model_len),
        max_logprobs=config.max_logprobs,
        fallback=chosen.fallback,
        operations=Counter(choice.name for choice in ops.report).most_common(1)[0][0],
    )
    return LoadedModel(
        module=module,
        decoder=decoder,
        config=parsed,
        names=names,
        info=info,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        eos_ids=generation.eos_ids,
        sampling_defaults=defaults,
        ops=ops,
        pooling=pooling.pooling,
        weight_bytes=size.num_bytes,
    )


def choose_device(setting: str) -> torch.device:
    """The device of a setting: auto, cpu or cuda. Raises ConfigError if there is no GPU."""
    present = torch.cuda.is_available()
    if setting == "cuda" and not present:
        raise ConfigError("--device cuda: torch finds no CUDA device; use --device cpu or auto.")
    return torch.device("cuda", 0) if setting != "cpu" and present else torch.device("cpu")


def choose_dtype(setting: str, of_checkpoint: str | None, device: torch.device) -> torch.dtype:
    """The dtype to run in. auto: the checkpoint's own, but float32 becomes bfloat16 on a GPU."""
    if setting != "auto":
        return _DTYPES[setting]
    name = of_checkpoint or "float32"
    if name not in _DTYPES:
        raise CheckpointError(f"The checkpoint's dtype {name} cannot be run; choose another with --dtype.")
    dtype = _DTYPES[name]
    return torch.bfloat16 if dtype == torch.float32 and device.type == "cuda" else dtype


def choose_length(setting: int | None, of_model: int | None, trained: int | None = None) -> int:
    """The longest sequence to serve. Raises ConfigError if the setting exceeds the model's limit.

    trained: the length that the model's embeddings were trained with, if it is shorter.
    """
    if of_model is None and setting is None:
        raise ConfigError("The model's config does not state its context length; set --max-model-len.")
    if setting is not None and of_model is not None and setting > of_model:
        raise ConfigError(f"--max-model-len may be at most {of_model} for this model, got {setting}.")
    return setting or min(length for length in (of_model, trained) if length is not None)


def choose_defaults(config: ModelConfig, of_model: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults: the override takes precedence over the model's, which `--generation-config none` drops."""
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
