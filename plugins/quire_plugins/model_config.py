"""The config of the model that a mapper is built for. It is no plugin by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.records import Context
from quire_models import checkpoint


def parsed(context: Context) -> Any:
    """The model's config with defaults filled in, as `Architecture.decoder` gets it."""
    assert context.folder is not None, "a mapper is built for a model"
    return checkpoint.read_config(Path(context.folder))
