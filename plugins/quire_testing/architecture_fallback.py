"""Conformance of fallbacks: models of any architecture are described, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quire.errors import CheckpointError
from quire.records import Architecture, ArchitectureFallback, ArchitectureQuery
from quire_models.loading import checkpoint
from quire_models.model_part import ModelPart
from quire_testing.require import require

WHOLE_MODEL = tuple(name for name, member in vars(ModelPart).items() if isinstance(member, property))
"""What the engine asks of the description of a whole model."""


def check_architecture_fallback(
    fallback: ArchitectureFallback, folders: Sequence[str | Path], refused: Sequence[str | Path] = ()
) -> None:
    """Raise AssertionError unless `find` describes the models in `folders`, and refuses those in `refused` politely."""
    require(fallback.name, "a fallback has a name, which --model-impl takes")
    for folder in map(Path, folders):
        query = _query(folder)
        found = fallback.find(query)
        require(isinstance(found, Architecture), f"find returned {type(found).__name__} for {folder}, no Architecture")
        part = found.decoder(query.config)
        missing = [name for name in (*WHOLE_MODEL, "build") if not hasattr(part, name)]
        require(not missing, f"the decoder of {folder} lacks {', '.join(missing)} of quire_models.model_part.ModelPart")
    for folder in map(Path, refused):
        try:
            fallback.find(_query(folder))
        except CheckpointError as error:
            require(str(error).strip(), f"the refusal of {folder} has no sentence")
        except Exception as error:
            raise AssertionError(f"find raised {type(error).__name__} for {folder}, not CheckpointError") from error
        else:
            raise AssertionError(f"find built the model in {folder}, which it should refuse")


def _query(folder: Path) -> ArchitectureQuery:
    config = checkpoint.read_config(folder)
    return ArchitectureQuery(tuple(config.architectures), config, folder, trust_remote_code=False)
