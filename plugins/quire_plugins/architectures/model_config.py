"""The parsed config of the model that an input mapper is built for. This module is not a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.records import Context
from quire_models.loading import checkpoint


def parsed(context: Context) -> Any:
    """The model's config with defaults filled in, the same object that `Architecture.decoder` gets."""
    assert context.folder is not None, "a mapper is built for a model"
    return checkpoint.read_config(Path(context.folder))
