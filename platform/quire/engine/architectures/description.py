"""What an architecture's plugin derives from a config.json, checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import PluginError, QuireError
from quire.records import Architecture
from quire_models.loading.weight_names import WeightsMapper
from quire_models.model_part import ModelPart
from quire_models.parts.decoder import Part
from quire_models.parts.pooling import Pooling


@dataclass(frozen=True)
class Description:
    """The parts of a model by an architecture and a config. Methods raise PluginError if a part is unusable.

    plugin: the plugin that brings the architecture, for errors.
    """

    architecture: Architecture
    config: Any
    plugin: str

    def decoder(self) -> ModelPart:
        """The model's decoder, or its encoder, which is treated the same way."""
        decoder: ModelPart = self._call("decoder", self.architecture.decoder)
        self._check(isinstance(decoder, ModelPart), "decoder", decoder, "a Decoder or an Encoder")
        return decoder

    def tower(self) -> Part | None:
        """The part that turns media into embedding rows, if there is one."""
        if self.architecture.tower is None:
            return None
        tower: Part = self._call("tower", self.architecture.tower)
        self._check(callable(getattr(tower, "build", None)), "tower", tower, "a part, which has `build`")
        return tower

    def pooling(self) -> Pooling | None:
        """The architecture's own pooling, if it has one."""
        if self.architecture.pooling is None:
            return None
        pooling: Pooling = self._call("pooling", self.architecture.pooling)
        self._check(isinstance(pooling, Pooling), "pooling", pooling, "a Pooling")
        return pooling

    def names(self) -> WeightsMapper:
        """The mapping from the checkpoint's weight names to ours."""
        names = self.architecture.names
        if not isinstance(names, WeightsMapper) and callable(names):
            names = self._call("table of names", names)
        self._check(
            isinstance(names, WeightsMapper),
            "table of names",
            names,
            "a quire_models.loading.weight_names.WeightsMapper",
        )
        table: WeightsMapper = names
        return table

    def _call(self, what: str, describe: Callable[[Any], Any]) -> Any:
        try:
            return describe(self.config)
        except (QuireError, KeyboardInterrupt):
            raise
        except BaseException as error:  # plugin code may raise anything
            raise PluginError(f"{self._error_prefix(what)}: {type(error).__name__}: {error}") from error

    def _check(self, is_valid: bool, what: str, found: object, expected: str) -> None:
        if not is_valid:
            raise PluginError(f"{self._error_prefix(what)}: it returned {found!r:.80}, which is not {expected}.")

    def _error_prefix(self, what: str) -> str:
        return f"Plugin {self.plugin!r} could not make a {what} of this config.json for {self.architecture.name}"
