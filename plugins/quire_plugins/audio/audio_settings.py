"""The feature extractor in a model's folder, and its settings. This module is not a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, Unprocessable
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


def feature_extractor(kind: Any, folder: str | None) -> Any:
    """The extractor of a folder. kind: its class in transformers. Raises CheckpointError if it cannot be used."""
    assert folder is not None, "a mapper is built for a model"
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many types for unusable files
        raise CheckpointError(
            f"{folder} has no feature extractor that can be used (processor_config.json or preprocessor_config.json):"
            f" {' '.join(str(error).split())[:300]}"
        ) from error


def extractor_of_mels(kind: Any, context: Context, mels: int) -> Any:
    """The extractor of a model whose frames have this size. Raises CheckpointError for one of another size."""
    found = feature_extractor(kind, context.folder)
    if found.feature_size != mels:
        raise CheckpointError(
            f"The feature extractor makes frames of {found.feature_size} numbers; the model takes {mels}."
        )
    return found


def check_finite(frames: NDArray[np.float32]) -> None:
    """Raise Unprocessable for frames of audio whose power exceeds the numbers of float32."""
    if not np.isfinite(frames).all():
        raise Unprocessable("The audio is too loud: its samples should be from -1 to 1.")
