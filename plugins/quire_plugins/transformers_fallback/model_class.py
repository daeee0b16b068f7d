"""The model class of a folder: transformers' own, or, if the user trusts it, code of the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError
from quire.records import ArchitectureQuery
from quire_models.loading.checkpoint import raw_config

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelClass:
    """A class of transformers' `PreTrainedModel`, and a config for it, which belongs to the caller."""

    name: str
    cls: Any
    config: Any


def find_class(query: ArchitectureQuery) -> ModelClass:
    """The class that `architectures` names. Raises CheckpointError if there is none, or if it may not run."""
    import transformers

    raw = raw_config(query.folder)
    for name in query.names:
        cls = getattr(transformers, name, None)
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return ModelClass(name, cls, _config_for(cls, raw, query))
    mapped = raw.get("auto_map")
    if not isinstance(mapped, Mapping) or not any(str(key).startswith("AutoModel") for key in mapped):
        raise CheckpointError(
            f"transformers {transformers.__version__} has no model {' or '.join(query.names)}, and the checkpoint "
            "brings no code for it."
        )
    if not query.trust_remote_code:
        raise CheckpointError(
            f"The model {query.names[0]} is Python code of the checkpoint, which runs only with --trust-remote-code."
        )
    return _from_code(query, mapped)


def _config_for(cls: Any, raw: Mapping[str, Any], query: ArchitectureQuery) -> Any:
    from transformers import CONFIG_MAPPING

    kind = raw.get("model_type")
    config_class = cls.config_class if kind not in CONFIG_MAPPING else CONFIG_MAPPING[str(kind)]
    try:
        config = config_class.from_dict(dict(raw))
        of_text = config.get_text_config()
    except Exception as error:  # transformers raises many exception types for invalid values
        raise CheckpointError(f"transformers cannot use config.json of {query.folder}: {_short(error)}") from error
    wanted = cls.config_class
    return of_text if isinstance(wanted, type) and not isinstance(config, wanted) else config


def _from_code(query: ArchitectureQuery, mapped: Mapping[str, Any]) -> ModelClass:
    """The class and the config that the checkpoint's own code defines."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    keys = [key for key in ("AutoModelForCausalLM", "AutoModel") if key in mapped]
    reference = str(mapped[keys[0]] if keys else next(v for k, v in mapped.items() if k.startswith("AutoModel")))
    folder = str(query.folder)
    log.warning("%s: running Python code of the checkpoint for the model (--trust-remote-code)", reference)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
        cls = get_class_from_dynamic_module(reference, folder, local_files_only=True)
    except Exception as error:  # the folder's code may raise anything
        raise CheckpointError(f"The code of the checkpoint in {folder} fails: {_short(error)}") from error
    return ModelClass(query.names[0], cls, config)


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
