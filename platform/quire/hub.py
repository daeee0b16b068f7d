"""Resolves a model name to a local folder: a path is used as it is, a hub id is downloaded.

It chooses the files that a model needs, but reads none of them, with one exception: for a GGUF file, the folder is made
from its header (`quire_models.gguf.folder`), and the weights stay in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire import files
from quire.errors import CheckpointError, ConfigError
from quire.settings.model_config import ModelConfig

if TYPE_CHECKING:
    from quire_models.gguf.file.reader import GGUFFile

_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.model.v*", "*.jinja", "*.tiktoken")
_TEXT_SUFFIXES = frozenset(pattern[1:] for pattern in _TEXT_FILES)
_CODE = ("*.py",)
_WEIGHTS_BY_FORMAT: dict[str, tuple[tuple[str, ...], ...]] = {
    "auto": (("*.safetensors",), ("pytorch_model*.bin",)),
    "safetensors": (("*.safetensors",),),
    "pt": (("pytorch_model*.bin",),),
    "dummy": (),
}
_WEIGHTS_OF_HEADS = (("*.safetensors",), ("*.bin", "*.pt"))
_IGNORED = (
    *("original/*", "consolidated*", "onnx/*", "*/*.bin"),
    *("*/[!a]*.safetensors", "*/a[!d]*.safetensors"),  # in subfolders all but adapter_model.safetensors
)
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
_GGUF = ".gguf"
_GGUF_OF_REPO = re.compile(rf"(?P<repo>{_REPO_ID.pattern}):(?P<which>[\w.\-]+(/[\w.\-]+)*)")
_OTHER_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

Fetch = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class ModelFiles:
    """Where a model is. folder: its config, tokenizer and, usually, weights. gguf: the GGUF file that has the weights
    (the first, if there are several parts), None if the folder has them; parts: that file, or all parts, opened.
    """

    folder: Path
    gguf: Path | None = None
    parts: tuple[GGUFFile, ...] = ()


def resolve(model: str, config: ModelConfig) -> Path:
    """The folder of `model`, which is downloaded if it is a hub id, or made from the header of a GGUF file.

    Raises ConfigError if there is no such folder, file or repository or it cannot be downloaded, and CheckpointError
    for a folder with files that must not be opened or a GGUF file that cannot be used.
    """
    return locate(model, config).folder


def locate(model: str, config: ModelConfig) -> ModelFiles:
    """Find the folder that `resolve` returns, and the GGUF file of the weights, if they are in one."""
    return _located(_resolve(model, config, config.revision, _WEIGHTS_BY_FORMAT[config.load_format]), config)


def resolve_tokenizer(config: ModelConfig, model_folder: Path) -> Path:
    """The folder of the tokenizer: `model_folder`, unless the settings name another."""
    if config.tokenizer is None:
        return model_folder
    return _located(_resolve(config.tokenizer, config, config.tokenizer_revision, ()), config).folder


def resolve_heads(model: str, config: ModelConfig, revision: str | None) -> Path:
    """The folder of draft heads: a folder, or that of a hub id, which is downloaded. Raises ConfigError and
    CheckpointError."""
    found = _resolve(model, config, revision, _WEIGHTS_OF_HEADS)
    if not found.is_dir():
        raise ConfigError(f"{model!r} is a file; draft heads are a folder with a config.json, or a hub id.")
    return _checked(found)


def _located(found: Path, config: ModelConfig) -> ModelFiles:
    """found: a folder, or a GGUF file."""
    if found.is_dir():
        return ModelFiles(_checked(found))
    if config.load_format in ("safetensors", "pt"):
        raise ConfigError(f"--load-format {config.load_format}: {found.name} is a GGUF file; leave the setting out.")
    from quire_models.gguf.file.parts import open_parts
    from quire_models.gguf.folder import model_folder

    parts = open_parts(found)
    return ModelFiles(_checked(model_folder(parts, gguf_cache(config.download_dir))), found, parts)


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


def gguf_cache(download_dir: str | None) -> Path:
    """The folder for the folders that are made from GGUF files: inside `download_dir`, or the default."""
    return _cache(download_dir) / "gguf"


def config_cache(download_dir: str | None) -> Path:
    """The folder for parsed configs: inside `download_dir`, or the default."""
    return _cache(download_dir) / "configs"


def _cache(download_dir: str | None) -> Path:
    return Path.home() / ".cache" / "quire" if download_dir is None else Path(download_dir).expanduser()


def _resolve(model: str, config: ModelConfig, revision: str | None, weights: tuple[tuple[str, ...], ...]) -> Path:
    """A folder, or a GGUF file."""
    if not model:
        raise ConfigError("No model was given; give a folder, a GGUF file or a hub id such as owner/name.")
    path = Path(model).expanduser()
    if path.is_dir():
        return _gguf_in(path.resolve()) or path.resolve()
    if path.suffix.lower() == _GGUF and path.is_file():
        return path.absolute()
    if path.exists():
        raise ConfigError(f"{model!r} is a file; a model is a folder with a config.json, a GGUF file, or a hub id.")
    of_repo = _GGUF_OF_REPO.fullmatch(model)
    if of_repo is not None and ".." not in model and "--" not in of_repo["repo"]:
        return _fetched_gguf(of_repo["which"], _fetcher(of_repo["repo"], config, revision), model)
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


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF model of a folder without other weights; None without one. Raises ConfigError if there are several."""
    if any(file for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)):
        return None
    from quire_models.gguf.file.parts import models_in

    models = models_in(folder)
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise ConfigError(f"{str(folder)!r} has several GGUF models; name one of its files: {names}.")
    return models[0] if models else None


def _fetched_gguf(which: str, fetch: Fetch, model: str) -> Path:
    """Download one GGUF model of a repository. which: the name of its file, or of its quantization, such as Q4_K_M."""
    from quire_models.gguf.file.parts import models_in, part_names

    if which.lower().endswith(_GGUF):
        folder, _, name = which.rpartition("/")
        names = [f"{folder}/{part}".lstrip("/") for part in part_names(name)]
        found = Path(fetch(names)) / names[0]
        if not found.is_file():
            raise ConfigError(f"{model!r}: the repository has no file {which}.")
        return found
    spelled = dict.fromkeys((which, which.upper(), which.lower()))
    ends = ("{}.gguf", "{}-?????-of-?????.gguf", "{}/*.gguf")
    starts = ("", "*-", "*.", "*_", "*/")
    root = Path(fetch([start + end.format(one) for one in spelled for start in starts for end in ends]))
    exact = re.compile(rf"(.*[-._/])?{re.escape(which)}(-\d{{5}}-of-\d{{5}}\.gguf|\.gguf|/[^/]*\.gguf)", re.IGNORECASE)
    models = [file for place in (root, *sorted(root.iterdir())) if place.is_dir() for file in models_in(place)]
    models = [file for file in models if exact.fullmatch(file.relative_to(root).as_posix())]
    if len(models) != 1:
        many = f"several GGUF models {which}: {', '.join(file.name for file in models)}" if models else "none"
        raise ConfigError(f"{model!r}: the repository has {many}; give the name of a file, as in owner/name:FILE.gguf.")
    return models[0]


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
