"""Finds the folders of adapters that clients name, and checks the names and paths that clients may use.

A path is a local folder. Anything else is a name, which plugins resolve (`quire_resolve_adapter`). Names that no plugin
resolves are cached for a while, so that repeated requests for them are cheap.
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
NEGATIVE_CACHE_S = 60.0
"""Seconds during which a name that no plugin resolved is not looked up again."""

MAX_NEGATIVE = 4096
"""Cached unknown names; the oldest are dropped first."""

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20


def check_name(name: str, *, with_owner: bool = False) -> None:
    """Raise BadRequest unless the name is printable and cannot be a path.

    with_owner: the name may contain one slash, as the ids of hubs do (owner/name).
    """
    parts = name[: MAX_NAME + 1].split("/", 1) if with_owner else [name[: MAX_NAME + 1]]
    printable = all(part.isprintable() and part == part.strip() and part not in ("", ".", "..") for part in parts)
    if not printable or len(name) > MAX_NAME or any(character in part for part in parts for character in "/\\"):
        raise BadRequest(
            f"{name[:MAX_NAME]!r} cannot be the name of an adapter: it must have from 1 to {MAX_NAME} printable "
            "characters, without /, \\ and spaces around it.",
            "lora_name",
        )


class AdapterResolver:
    """Resolves names and paths of adapters. Thread-safe; resolving a name may block.

    roots: folders that must contain the paths from clients, after symbolic links are resolved; None = any folder,
    an empty sequence = paths are refused. cache_dir: where plugins may store downloads. clock: returns seconds.
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
        """The adapter folder at a path that a client gave, None if no readable adapter is there.

        Raises BadRequest outside the roots, whether or not anything is there.
        """
        try:
            found = Path(path).expanduser().resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links, no such user
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
        """The folder of the adapter `name` for the model `base`: one of a demo model, or one that a plugin resolves.

        None if there is no such adapter. Raises PluginFailed.
        """
        shipped = self._of_demo(name, base)
        if shipped is not None:
            return shipped
        key = (name, base)
        with self._lock:
            since = self._unknown.get(key)
            if since is not None and self._clock() - since < NEGATIVE_CACHE_S:
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
            while len(self._unknown) > MAX_NEGATIVE:
                del self._unknown[next(iter(self._unknown))]
        return None

    def _of_demo(self, name: str, base: str) -> Path | None:
        demos: Iterable[DemoModel] = self._registry.all("quire_demo_models")
        return next((d.adapters().get(name) for d in demos if base in (d.name, str(d.folder()))), None)


def base_of(folder: Path, bases: Mapping[str, Sequence[str]]) -> str | None:
    """The model that an adapter was trained for, according to its configuration; None if that is ambiguous.

    bases: by model name, all its names: aliases, hub id, folder.
    """
    if len(bases) == 1:
        return next(iter(bases))
    try:
        base = str(files.read_json(folder / CONFIG_FILE, MAX_CONFIG_BYTES)["base_model_name_or_path"])
    except (files.FileRefused, KeyError, TypeError):
        return None
    found = [name for name, called in bases.items() if base in called or _tail(base) in map(_tail, called)]
    return found[0] if len(found) == 1 else None


def _tail(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
