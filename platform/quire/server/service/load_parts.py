"""What a load of a model needs besides the engine process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.server.service.models import ServedModel
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo


class Frontends(Protocol):
    """Loads tokenizers, templates and parsers; `quire.server.process.frontend_loader.FrontendLoader` implements it."""

    def prepare(self, models: Sequence[ModelConfig]) -> None:
        """Load what needs no loaded weights; blocks, and raises nothing."""
        ...

    def load(self, models: Sequence[ModelConfig], infos: Sequence[ModelInfo]) -> list[ServedModel]:
        """What the server needs of each loaded model; blocks. Raises `StartupError`."""
        ...


class Observers(Protocol):
    """What has rows or series for each model, such as the metrics."""

    def add_model(self, info: ModelInfo) -> None: ...

    async def remove_model(self, name: str) -> None:
        """Forget a model, after the requests that have ended are counted."""
        ...
