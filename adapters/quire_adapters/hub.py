"""Plugin lora-hub: adapters by their ids on the Hugging Face hub, of owners that the server's operator trusts.

Who may send requests may name any adapter, so without an allow-list nothing is downloaded. Files go to the server's
cache of adapters; while the hub cannot be reached, what lies there is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import BadRequest, Overloaded
from quire.hookspecs import hookimpl
from quire.records import AdapterSource, Option

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The first that there is is downloaded."""

TIMEOUT_S = 20.0


@hookimpl
def quire_options() -> Iterable[Option]:
    """Whose adapters, and how large ones."""
    yield Option("allow", str, "", "ids that requests may name, with wildcards, between commas: my-org/*,somebody/one")
    yield Option("max-bytes", int, 1 << 30, "largest adapter that is downloaded")


@hookimpl
def quire_resolve_adapter(name: str, cache_dir: Path, options: Mapping[str, Any]) -> AdapterSource | None:
    """Download the adapter, if it is allowed and there is one; its revision is the commit.

    Raises BadRequest for one that is too large or that nobody granted access to, Overloaded without a hub.
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
    except Exception as error:  # of the hub's client, and of the one for HTTP below it
        return _kept(name, cache_dir, error)
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


def _kept(name: str, cache_dir: Path, reason: Exception) -> AdapterSource:
    """What was downloaded before, the latest of it. Raises Overloaded if that is nothing."""
    snapshots = (cache_dir / f"models--{name.replace('/', '--')}" / "snapshots").glob("*")
    kept = [at for at in snapshots if (at / CONFIG).exists() and any((at / file).exists() for file in WEIGHTS)]
    if not kept:
        raise Overloaded(f"The hub cannot be asked for the adapter `{name}` now: {_first_line(reason)}") from reason
    latest = max(kept, key=lambda folder: folder.stat().st_mtime_ns)
    return AdapterSource(latest, revision=latest.name)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
