"""The adapters that prompts with media use: those that a model's folder has for a modality, and --default-mm-loras.

Some models take audio or images only with an adapter that is trained for them, which prompts of text must not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.engine.adapters.folder import CONFIG_FILE
from quire.errors import BadRequest, ConfigError, PluginError
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Request, WeightedAdapter

if TYPE_CHECKING:
    from quire.engine.loading.load import LoadedModel

PREFIX = "/"
"""How the names of these adapters begin, and no name that a client may use."""


def adapter_name(modality: str) -> str:
    """The name of the adapter of a modality."""
    return PREFIX + modality


def is_of_modality(name: str) -> bool:
    """Whether an adapter belongs to a modality, so that it is not listed and cannot be unloaded."""
    return name.startswith(PREFIX)


def modality_adapters(config: ModelConfig, registry: Registry, loaded: LoadedModel) -> Mapping[str, Path]:
    """Folders of adapters by modality, in order of precedence. Raises ConfigError for a modality without a mapper."""
    folder, record = Path(loaded.info.folder), registry.by_hook("quire_architectures").get(loaded.info.architecture)
    own: Mapping[str, str] = {}
    if record is not None and record.modality_adapters is not None:
        own = record.modality_adapters(loaded.config)
        if not isinstance(own, Mapping):
            raise PluginError(f"`modality_adapters` of {record.name} returned {own!r:.80}, which is not a mapping.")
    found = {modality: folder / place for modality, place in own.items() if (folder / place / CONFIG_FILE).is_file()}
    for modality, place in config.default_mm_loras.items():
        if modality not in loaded.info.modalities or not isinstance(place, str):
            takes = ", ".join(loaded.info.modalities) or "text only"
            raise ConfigError(
                f"--default-mm-loras must map modalities of the model ({takes}) to folders; got {modality!s:.40}:"
                f" {place!r:.80}."
            )
        found[modality] = Path(place).expanduser()
    return found


def with_modality_adapter(request: Request, available: Mapping[str, bool]) -> Request:
    """The request with the adapter of its media, if it names none.

    available: modalities that have an adapter, the first of the request's is used; whether it is loaded. Raises
    BadRequest if it is not.
    """
    if request.adapters or not request.prompt.media:
        return request
    used = {medium.modality for medium in request.prompt.media}
    modality = next((one for one in available if one in used), None)
    if modality is None:
        return request
    if not available[modality]:
        raise BadRequest(
            f"This model needs an adapter of its folder for prompts with {modality}: start the server with"
            " --enable-lora.",
            "messages",
        )
    return replace(request, adapters=(WeightedAdapter(AdapterRef(name=adapter_name(modality))),))
