"""Engines that a draft model drafts for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_rig import Rig, rig_of

from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.records import Registry


@contextmanager
def draft_model_rig(
    folder: Path,
    draft: Path,
    speculative: dict[str, Any] | None = None,
    found: Registry | None = None,
    **settings: Any,
) -> Iterator[tuple[Rig, ModelDrafter]]:
    """An engine on `folder` with the draft model of another folder, with 4 drafts a step by default."""
    config = {
        "method": "draft_model",
        "model": str(draft),
        "num_speculative_tokens": 4,
        "adaptive": False,
        **(speculative or {}),
    }
    with rig_of(folder, found, speculative_config=config, **settings) as rig:
        speculation = rig.engine._speculation
        assert speculation is not None
        drafter = speculation._drafter.built
        assert isinstance(drafter, ModelDrafter)
        yield rig, drafter


def num_pages_used(drafter: ModelDrafter) -> int:
    """Pages that the sequences of the draft model have."""
    return drafter._cache._pool.num_used
