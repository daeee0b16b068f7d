"""Plugin lora-hub: downloads adapters by their ids from the Hugging Face hub, from owners that the operator allows.

Clients choose the names, so nothing is downloaded without an allow-list. Files go to the server's adapter cache, which
is used alone while the hub cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.plugin import AdapterSource, BadRequest, Option, Overloaded, hookimpl

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Weight files in order of preference; the first that exists is downloaded."""

TIMEOUT_S = 20.0


@hookimpl
def quire_options() -> Iterable[Option]:
    """The allow-list and the size limit."""
    yield Option("allow", str, "", "comma-separated ids that requests may name, with wildcards: my-org/*,other-org/one")
    yield Option("max-bytes", int, 1 << 30, "size limit of downloaded adapters, in bytes")


@hookimpl
def quire_resolve_adapter(name: str, cache_dir: Path, options: Mapping[str, Any]) -> AdapterSource | None:
    """Download the adapter, if it is allowed and exists. Its revision is the commit.

    Raises BadRequest if it is too large or gated, and Overloaded if the hub cannot be reached.
    """
    if not any(fnmatchcase(name, pattern.strip()) for pattern in options["allow"].split(",")):
        return None
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=TIMEOUT_S)
    except errors.GatedRepoError as error:
        raise BadRequest(
            f"The adapter `{name}` is gated: its owner must grant the server access, which then logs in with "
            "`hf auth login`.",
            "model",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return None
    except Exception as error:  # of the hub's client and its HTTP client
        return _cached(name, cache_dir, error)
    return _downloaded(name, info, cache_dir, options["max-bytes"])


def _downloaded(name: str, info: ModelInfo, cache_dir: Path, max_bytes: int) -> AdapterSource | None:
    import huggingface_hub

    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    weights = next((file for file in WEIGHTS if file in sizes), None)
    if CONFIG not in sizes or weights is None or info.sha is None:
        return None
    size = sizes[CONFIG] + sizes[weights]
    if size > max_bytes:
        raise BadRequest(
            f"The adapter `{name}` has {size} bytes; at most {max_bytes} are downloaded (--lora-hub.max-bytes).",
            "model",
        )
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=info.sha, cache_dir=cache_dir, allow_patterns=[CONFIG, weights]
        )
    except Exception as error:
        raise Overloaded(f"The adapter `{name}` cannot be downloaded now: {_first_line(error)}") from error
    return AdapterSource(Path(folder), revision=info.sha)


def _cached(name: str, cache_dir: Path, reason: Exception) -> AdapterSource:
    """The latest snapshot that was downloaded before. Raises Overloaded if there is none."""
    snapshots = (cache_dir / f"models--{name.replace('/', '--')}" / "snapshots").glob("*")
    cached = [at for at in snapshots if (at / CONFIG).exists() and any((at / file).exists() for file in WEIGHTS)]
    if not cached:
        raise Overloaded(f"The hub cannot be reached for the adapter `{name}`: {_first_line(reason)}") from reason
    latest = max(cached, key=lambda folder: folder.stat().st_mtime_ns)
    return AdapterSource(latest, revision=latest.name)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
