"""Resolves a model name to a local folder: a path is used as it is, a hub id is downloaded.

It chooses the files that a model needs, but reads none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import CheckpointError, ConfigError
from quire.settings.model_config import ModelConfig

_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.model.v*", "*.jinja", "*.tiktoken")
_TEXT_SUFFIXES = frozenset(pattern[1:] for pattern in _TEXT_FILES)
_CODE = ("*.py",)
_WEIGHTS_BY_FORMAT: dict[str, tuple[tuple[str, ...], ...]] = {
    "auto": (("*.safetensors",), ("pytorch_model*.bin",)),
    "safetensors": (("*.safetensors",),),
    "pt": (("pytorch_model*.bin",),),
    "dummy": (),
}
_IGNORED = ("original/*", "consolidated*", "onnx/*", "*/*.safetensors", "*/*.bin")
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")

Fetch = Callable[[Sequence[str]], str]


def resolve(model: str, config: ModelConfig) -> Path:
    """The folder of `model`, which is downloaded if it is a hub id.

    Raises ConfigError if there is no such folder or repository or it cannot be downloaded, and CheckpointError for a
    folder with files that must not be opened.
    """
    return _checked(_resolve(model, config, config.revision, _WEIGHTS_BY_FORMAT[config.load_format]))


def resolve_tokenizer(config: ModelConfig, model_folder: Path) -> Path:
    """The folder of the tokenizer: `model_folder`, unless the settings name another."""
    if config.tokenizer is None:
        return model_folder
    return _checked(_resolve(config.tokenizer, config, config.tokenizer_revision, ()))


def _checked(folder: Path) -> Path:
    """Return the folder, or raise CheckpointError if libraries must not open its files."""
    problem = files.check_folder(folder, _TEXT_SUFFIXES)
    if problem is not None:
        raise CheckpointError(problem)
    return folder


def adapter_cache(folder: str | None) -> Path:
    """The folder for adapters that plugins download: `folder`, or the default."""
    if folder is not None:
        return Path(folder).expanduser()
    return Path.home() / ".cache" / "quire" / "adapters"


def _resolve(model: str, config: ModelConfig, revision: str | None, weights: tuple[tuple[str, ...], ...]) -> Path:
    if not model:
        raise ConfigError("No model was given; give a folder or a hub id such as owner/name.")
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.suffix.lower() == ".gguf":
        raise ConfigError(
            f"{model!r}: GGUF files are not supported. Use the original folder or hub id with safetensors files; "
            "--quantization int8 reduces their memory."
        )
    if path.exists():
        raise ConfigError(f"{model!r} is a file; a model is a folder with a config.json, or a hub id.")
    if not _REPO_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ConfigError(f"There is no folder {model!r}, and it is not a hub id either (owner/name).")
    fetch = _fetcher(model, config, revision)
    others = _TEXT_FILES + (_CODE if config.trust_remote_code else ())
    folder = Path(fetch(others + (weights[0] if weights else ())))
    for patterns in weights[1:]:
        if any(file for pattern in weights[0] for file in folder.glob(pattern)):
            break
        folder = Path(fetch(others + patterns))
    return folder


def _fetcher(model: str, config: ModelConfig, revision: str | None) -> Fetch:
    if config.hub == "modelscope":
        return _from_modelscope(model, config, revision)
    return _from_huggingface(model, config, revision)


def _from_huggingface(model: str, config: ModelConfig, revision: str | None) -> Fetch:
    import huggingface_hub

    def fetch(patterns: Sequence[str]) -> str:
        try:
            return huggingface_hub.snapshot_download(
                model,
                revision=revision,
                cache_dir=config.download_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(_IGNORED),
            )
        except Exception as error:
            raise ConfigError(_huggingface_error(model, revision, error)) from error

    return fetch


def _huggingface_error(model: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    reasons: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, "its owner must grant you access first, then log in with `hf auth login`"),
        (
            errors.RepositoryNotFoundError,
            "the hub has no such repository, or it is private (log in with `hf auth login`)",
        ),
        (errors.RevisionNotFoundError, f"it has no revision {revision!r}"),
        (errors.OfflineModeIsEnabled, "offline mode is on (HF_HUB_OFFLINE), and the model is not in the cache"),
        (
            errors.LocalEntryNotFoundError,
            "the hub cannot be reached (or offline mode is on), and the model is not in the cache",
        ),
        (errors.HFValidationError, "that is not a valid hub id (owner/name)"),
    )
    for kind, reason in reasons:
        if isinstance(error, kind):
            return f"There is no folder {model!r}, and it cannot be downloaded from Hugging Face: {reason}."
    return f"Downloading {model!r} from Hugging Face failed: {_first_line(error)}"


def _from_modelscope(model: str, config: ModelConfig, revision: str | None) -> Fetch:
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise ConfigError("--hub modelscope needs the package modelscope: pip install modelscope.") from error

    def fetch(patterns: Sequence[str]) -> str:
        options: dict[str, Any] = {"revision": revision} if revision else {}
        try:
            return snapshot_download(
                model,
                cache_dir=config.download_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(_IGNORED),
                **options,
            )
        except Exception as error:
            raise ConfigError(f"Downloading {model!r} from ModelScope failed: {_first_line(error)}") from error

    return fetch


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
