"""What is in the Hugging Face cache: models, adapters and GGUF files, by the names that `platform serve` takes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import ConfigError
from quire.settings.near_names import near_name

MODEL, ADAPTER, GGUF, PARTIAL = "model", "adapter", "gguf", "partial"
"""Kinds. partial: there are files of a repository, but no weights."""

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)", re.IGNORECASE)
_QUANTIZATION = re.compile(r"(?:^|[-._/])((?:I?Q\d|T?Q\d|BF16|F16|F32|MXFP4)\w*)(?=\.gguf$)", re.IGNORECASE)


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache. name: as `platform serve` takes it. num_bytes: of its files on disk.

    folder: its newest snapshot. files: those of the model there. blobs: what they link to. last_used: seconds since
    the epoch.
    """

    name: str
    repo: str
    kind: str
    num_bytes: int
    revision: str
    last_used: float
    folder: Path
    files: tuple[Path, ...]
    blobs: frozenset[Path]


def cached_models(download_dir: str | None) -> list[CachedModel]:
    """Everything in the cache, by name. download_dir: the cache's folder; None: the usual one. Raises ConfigError."""
    info = _scanned(download_dir)
    repos = [repo for repo in info.repos if repo.repo_type == "model"] if info is not None else []
    return sorted((model for repo in repos for model in _models_of(repo)), key=lambda model: model.name.lower())


def _scanned(download_dir: str | None) -> Any:
    """The cache, as huggingface_hub describes it; None if there is none yet. Raises ConfigError."""
    from huggingface_hub import errors, scan_cache_dir

    try:
        return scan_cache_dir(None if download_dir is None else Path(download_dir).expanduser())
    except errors.CacheNotFound:
        return None
    except (ValueError, OSError) as error:
        raise ConfigError(f"The cache cannot be read: {error}") from error


def find_cached(name: str, models: Sequence[CachedModel]) -> CachedModel:
    """The model of a name, in any case, or without its owner if only one has that name. Raises ConfigError."""
    exact = [model for model in models if model.name.lower() == name.lower()]
    short = [model for model in models if model.name.partition("/")[2].lower() == name.lower()]
    if len(found := exact or short) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} is the name of several models: {', '.join(model.name for model in found)}.")
    near = near_name(name, [model.name for model in models])
    hint = f"Did you mean {near!r}?" if near else "`platform list` shows what is there."
    raise ConfigError(f"There is no model {name!r} on this machine. {hint}")


def _models_of(repo: Any) -> Iterable[CachedModel]:
    """The models of one repository: one in Hugging Face format or an adapter, and one for each GGUF model."""
    if not repo.revisions:
        return
    newest = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
    paths = {str(file.file_path.relative_to(newest.snapshot_path)): file for file in newest.files}
    gguf: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        if path.lower().endswith(".gguf"):
            gguf[_PART.sub("", path)].append(path)
    names = _gguf_names(repo.repo_id, list(gguf))
    for whole, parts in gguf.items():
        yield _model(names[whole], GGUF, repo, newest, [paths[part] for part in parts])
    kind = _kind(paths)
    if kind != PARTIAL or not gguf:
        others = [file for path, file in paths.items() if not path.lower().endswith(".gguf")]
        yield _model(repo.repo_id, kind, repo, newest, others)


def _kind(paths: Iterable[str]) -> str:
    names = set(paths)
    if "adapter_config.json" in names:
        return ADAPTER
    weights = any(name.endswith((".safetensors", ".bin")) for name in names)
    return MODEL if weights and "config.json" in names else PARTIAL


def _gguf_names(repo: str, paths: Sequence[str]) -> dict[str, str]:
    """The name of each GGUF model: repo:QUANTIZATION, or repo:FILE where that says not which one is meant."""
    found = {path: _QUANTIZATION.search(path) for path in paths}
    counts = Counter(match[1].lower() for match in found.values() if match)
    return {
        path: f"{repo}:{match[1] if match and counts[match[1].lower()] == 1 else path}" for path, match in found.items()
    }


def _model(name: str, kind: str, repo: Any, revision: Any, files: Sequence[Any]) -> CachedModel:
    blobs = {file.blob_path: file.size_on_disk for file in files}
    return CachedModel(
        name=name,
        repo=repo.repo_id,
        kind=kind,
        num_bytes=sum(blobs.values()),
        revision=revision.commit_hash,
        last_used=max((file.blob_last_accessed for file in files), default=repo.last_accessed),
        folder=revision.snapshot_path,
        files=tuple(file.file_path for file in files),
        blobs=frozenset(blobs),
    )
