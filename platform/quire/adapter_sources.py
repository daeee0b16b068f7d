"""AdapterSources: where adapters lie that clients name, and what names and paths they may use.

A path is a folder on this disk. What is no folder is a name, for which plugins are asked (`quire_resolve_adapter`);
names that none of them knows are remembered for a while, so that a client that keeps asking costs nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from quire import files
from quire.errors import BadRequest
from quire.records import AdapterSource, DemoModel, Registry

log = logging.getLogger(__name__)

MAX_NAME = 128
UNKNOWN_FOR_S = 60.0
"""How long plugins are not asked again for a name that none of them knew."""

MOST_UNKNOWN = 4096
"""Unknown names that are remembered; beyond, the oldest are forgotten."""

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20


def check_name(name: str, *, with_owner: bool = False) -> None:
    """Raise BadRequest unless an adapter may be called so: a word or some, but nothing that could be a path.

    with_owner: one slash may stand in it, as in the ids of hubs (owner/name).
    """
    parts = name.split("/", 1) if with_owner else [name]
    printable = all(part.isprintable() and part == part.strip() and part not in ("", ".", "..") for part in parts)
    if not printable or len(name) > MAX_NAME or any(mark in part for part in parts for mark in "/\\"):
        raise BadRequest(
            f"{name[:MAX_NAME]!r} cannot be the name of an adapter: it must have from 1 to {MAX_NAME} printable "
            "characters, without /, \\ and spaces around it.",
            "lora_name",
        )


class AdapterSources:
    """Asks plugins for adapters of one server or process. Any thread may use it; asking blocks.

    roots: folders in which paths from clients must lie, after symbolic links are followed; None = anywhere, none at
    all = paths are refused.
    cache_dir: where plugins may keep what they download. clock: seconds.
    """

    def __init__(
        self,
        registry: Registry,
        cache_dir: Path,
        roots: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._cache_dir, self._clock = registry, cache_dir, clock
        self._roots = None if roots is None else [Path(root).expanduser().resolve() for root in roots]
        self._unknown: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def folder(self, path: str) -> Path | None:
        """The folder of an adapter that a client means by a path, None if there is none that can be read.

        Raises BadRequest outside the roots, whatever is there.
        """
        try:
            found = Path(path).expanduser().resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links, nobody's home
            found = None
        if self._roots is None or (found is not None and any(found.is_relative_to(root) for root in self._roots)):
            return found if found is not None and os.path.exists(found / CONFIG_FILE) else None
        if not self._roots:
            raise BadRequest(
                "This server loads no adapters by path: it is reached from other machines, and neither --lora-root nor "
                "--admin-api-key is set.",
                "lora_path",
            )
        raise BadRequest(f"{path:.200} is not in a folder that adapters may be loaded from (--lora-root).", "lora_path")

    def find(self, name: str, base: str) -> Path | None:
        """Where plugins say that an adapter of this name for the model `base` lies; None if none of them knows.

        Demo models bring some of their own. Raises PluginFailed.
        """
        shipped = self._of_demo(name, base)
        if shipped is not None:
            return shipped
        key = (name, base)
        with self._lock:
            since = self._unknown.get(key)
            if since is not None and self._clock() - since < UNKNOWN_FOR_S:
                return None
        source: AdapterSource | None = self._registry.resolve_adapter(name, base, self._cache_dir)
        if source is not None:
            log.info("adapter %s for %s: %s, version %s", name, base, source.path, source.revision)
            with self._lock:
                self._unknown.pop(key, None)
            return source.path
        with self._lock:
            self._unknown.pop(key, None)
            self._unknown[key] = self._clock()
            while len(self._unknown) > MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
        return None

    def _of_demo(self, name: str, base: str) -> Path | None:
        demos: Iterable[DemoModel] = self._registry.all("quire_demo_models")
        return next((d.adapters().get(name) for d in demos if base in (d.name, str(d.folder()))), None)


def base_of(folder: Path, bases: Mapping[str, Sequence[str]]) -> str | None:
    """Which of several models an adapter was made for, if its configuration says so; None when it is not clear.

    bases: by the model's name, all that it may be called: aliases, hub id, folder.
    """
    if len(bases) == 1:
        return next(iter(bases))
    try:
        wanted = str(files.read_json(folder / CONFIG_FILE, MAX_CONFIG_BYTES)["base_model_name_or_path"])
    except (files.FileRefused, KeyError, TypeError):
        return None
    found = [name for name, called in bases.items() if wanted in called or _tail(wanted) in map(_tail, called)]
    return found[0] if len(found) == 1 else None


def _tail(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
