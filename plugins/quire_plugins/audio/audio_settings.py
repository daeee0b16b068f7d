"""Settings of the feature extractor in a model's folder. This module is not a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.records import Context
from quire_models.loading.json_files import read_object


def extractor_settings(context: Context, part: str = "audio_processor") -> Mapping[str, Any]:
    """What preprocessor_config.json says, or that part of processor_config.json. Raises CheckpointError if there is
    neither.
    """
    assert context.folder is not None, "a mapper is built for a model"
    folder = Path(context.folder)
    found = read_object(folder, "preprocessor_config.json")
    if found is not None:
        return found
    both = read_object(folder, "processor_config.json")
    if both is None:
        raise CheckpointError(f"{folder} has neither preprocessor_config.json nor processor_config.json.")
    nested = both.get(part) or both.get("feature_extractor")
    return nested if isinstance(nested, Mapping) else both
