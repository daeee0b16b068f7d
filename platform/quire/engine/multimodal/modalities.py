"""The modalities that a model's prompts may have."""

from __future__ import annotations

from quire.engine.architectures.choice import ChosenArchitecture
from quire.errors import PluginError
from quire.records import Registry


def modalities_of(chosen: ChosenArchitecture, registry: Registry) -> tuple[str, ...]:
    """The modalities with an input mapper for the model. Raises PluginError if there are some but no tower."""
    architecture = chosen.architecture
    if chosen.is_fallback and architecture.tower is None:
        return ()
    mappers = registry.input_mappers(architecture.name, chosen.fallback)
    if mappers and architecture.tower is None:
        plugin = registry.plugin_of("quire_input_mappers", mappers[0].name)
        raise PluginError(
            f"Plugin {plugin!r} maps {mappers[0].modality} for {architecture.name}, an architecture without a tower."
        )
    return tuple(dict.fromkeys(mapper.modality for mapper in mappers))
