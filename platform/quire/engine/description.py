"""Description: what an architecture's plugin says of one config.json, checked before anything is built of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import PluginError, QuireError
from quire.records import Architecture, Registry
from quire_models.encoder import Encoder
from quire_models.names import Names
from quire_models.parts import Decoder, Part
from quire_models.poolers import Pooling


@dataclass(frozen=True)
class Description:
    """What is made of a config; all methods raise PluginError, which names the plugin, for what cannot be used."""

    architecture: Architecture
    config: Any
    registry: Registry

    def decoder(self) -> Decoder:
        """The model's decoder, or encoder, which is treated alike."""
        decoder: Decoder = self._made("decoder", self.architecture.decoder)
        self._demand(isinstance(decoder, Decoder | Encoder), "decoder", decoder, "a Decoder or an Encoder")
        return decoder

    def tower(self) -> Part | None:
        """The part that turns media into rows, if it has one."""
        if self.architecture.tower is None:
            return None
        tower: Part = self._made("tower", self.architecture.tower)
        self._demand(callable(getattr(tower, "build", None)), "tower", tower, "a part, which has `build`")
        return tower

    def pooling(self) -> Pooling | None:
        """Its own pooling, if it has one."""
        if self.architecture.pooling is None:
            return None
        pooling: Pooling = self._made("pooling", self.architecture.pooling)
        self._demand(isinstance(pooling, Pooling), "pooling", pooling, "a Pooling")
        return pooling

    def names(self) -> Names:
        """Its table of the checkpoint's names."""
        names = self.architecture.names
        if not isinstance(names, Names) and callable(names):
            names = self._made("table of names", names)
        self._demand(isinstance(names, Names), "table of names", names, "a quire_models.names.Names")
        table: Names = names
        return table

    def _made(self, what: str, describe: Callable[[Any], Any]) -> Any:
        try:
            return describe(self.config)
        except (QuireError, KeyboardInterrupt):
            raise
        except BaseException as error:  # plugin code may raise anything
            raise PluginError(f"{self._whose(what)}: {type(error).__name__}: {error}") from error

    def _demand(self, fits: bool, what: str, found: object, wanted: str) -> None:
        if not fits:
            raise PluginError(f"{self._whose(what)}: it gave {found!r:.80}, which is not {wanted}.")

    def _whose(self, what: str) -> str:
        name = self.architecture.name
        plugin = self.registry.plugin_of("quire_architectures", name)
        return f"Plugin {plugin!r} could not make a {what} of this config.json for {name}"
