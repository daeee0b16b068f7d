"""Checks that a model can be divided among the ranks that its settings ask for, before any of them is started."""

from __future__ import annotations

from quire import hub
from quire.engine.architectures.choice import choose_architecture
from quire.engine.architectures.description import Description
from quire.engine.parallel.stages.position import RankPosition
from quire.hooks.call_stats import naming_plugin
from quire.records import ArchitectureQuery, Registry
from quire.settings.model_config import ModelConfig
from quire_kernels.groups.group import OneMember
from quire_models.loading import checkpoint


def check_division(config: ModelConfig, registry: Registry) -> None:
    """Raise ConfigError if the model has fewer heads, columns or blocks than there would be ranks or stages.

    Downloads the model, once for all ranks. Raises what reading its config.json and building its description raise.
    """
    folder = hub.locate(config.model, config).folder
    parsed = checkpoint.read_config(folder, config.trust_remote_code, hub.config_cache(config.download_dir))
    query = ArchitectureQuery(tuple(parsed.architectures), parsed, folder, config.trust_remote_code)
    with naming_plugin(registry, f"{config.name} was loaded"):
        chosen = choose_architecture(config.model_impl, query, registry)
        whole = Description(chosen.architecture, parsed, chosen.plugin).decoder()
    RankPosition.from_config(config, 0).shard(config, OneMember(), None, lambda total: total, whole_groups=True).parts(
        whole
    )
