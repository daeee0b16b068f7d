"""The settings of the tiers that keep KV pages beside the device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError
from quire.settings.model_groups.rank_config import RankConfig
from quire.settings.setting import check_positive, setting

if TYPE_CHECKING:
    from quire.records import Registry

FLAG = "--kv-store-config"
STORES = "quire_kv_stores"
DISK = "disk"
"""The store of --kv-disk."""


@dataclass(frozen=True)
class ChosenStore:
    """A store and its settings."""

    store: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class KvTiersConfig(RankConfig):
    """Base of `ModelConfig`: where KV pages are kept beside the device's memory."""

    kv_offloading_size: float = setting(
        "Host memory in GiB for cached KV pages that the device has no room for, shared by the models of a process "
        "(see docs/scale/kv_tiers.md).",
        0.0,
    )
    kv_disk: str | None = setting(
        "Folder for cached KV pages, which outlive the server; several servers may share it (default: none)."
    )
    kv_disk_bytes: int = setting("Maximum size in bytes of the files in --kv-disk, e.g. 20G.", 10 << 30)
    kv_store_config: Mapping[str, Any] = setting(
        'Keep cached KV pages in a store of a plugin too: {"store": NAME} and the settings of that store (default: '
        "none).",
        {},
    )

    def _check_kv_tiers(self) -> None:
        check_positive(self, "kv_disk_bytes")
        if self.kv_offloading_size < 0:
            raise ConfigError(f"--kv-offloading-size must be at least 0 GiB; got {self.kv_offloading_size}.")

    @property
    def has_kv_tiers(self) -> bool:
        """Whether pages are kept anywhere but on the device."""
        return bool(self.kv_offloading_size or self.kv_disk or self.kv_store_config)

    def kv_stores(self, registry: Registry) -> list[ChosenStore]:
        """The stores of pages, from the fastest to the slowest. Raises ConfigError."""
        known = registry.by_hook(STORES)
        found = []
        if self.kv_disk:
            found.append(ChosenStore(DISK, {"folder": self.kv_disk, "max_bytes": self.kv_disk_bytes}))
        if self.kv_store_config:
            rest = dict(self.kv_store_config)
            found.append(ChosenStore(str(rest.pop("store", "")), rest))
        for chosen in found:
            if chosen.store not in known:
                names = ", ".join(sorted(known))
                raise ConfigError(f"`store` of {FLAG} must be one of {names}; got {chosen.store!r:.80}.")
            for key in chosen.settings:
                if key not in known[chosen.store].settings:
                    raise ConfigError(f"{FLAG} has the unknown key {key!r:.80}.")
        return found
