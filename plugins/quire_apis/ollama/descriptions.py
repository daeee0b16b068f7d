"""Describes the served models and adapters as Ollama lists and shows models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.plugin import AdapterInfo, ModelFormats, ModelInfo, NotFound, RouterContext

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
"""Endings of files with weights."""

NEVER = "9999-12-31T23:59:59Z"
"""When a loaded model is unloaded: it stays."""

_TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)$")


def find_name(context: RouterContext, name: str) -> str:
    """The name of a model or adapter; Ollama's clients may append `:latest`."""
    short = name.removesuffix(":latest")
    known = {alias for info in context.models() for alias in (*info.aliases, info.name)}
    known |= {info.name for info in context.adapters()}
    return short if name not in known and short in known else name


def model_rows(context: RouterContext) -> Iterator[dict[str, Any]]:
    """An entry of `/api/tags` for each name that requests may have. Reads sizes of files."""
    infos = {info.name: info for info in context.models()}
    for info in infos.values():
        for alias in dict.fromkeys((info.name, *info.aliases)):
            yield _row(alias, info, Path(info.folder))
    for adapter in context.adapters():
        yield _row(adapter.name, infos[adapter.model], Path(adapter.path), adapter)


def running_rows(context: RouterContext) -> list[dict[str, Any]]:
    """An entry of `/api/ps` for each loaded model."""
    infos = {alias: info for info in context.models() for alias in (*info.aliases, info.name)}
    rows = []
    for row in model_rows(context):
        info = infos.get(row["name"]) or infos[row["details"]["parent_model"]]
        del row["modified_at"]
        on_device = row["size"] if info.device != "cpu" else 0
        rows.append({**row, "expires_at": NEVER, "size_vram": on_device, "context_length": info.max_model_len})
    return rows


def shown(context: RouterContext, name: str, formats: ModelFormats) -> dict[str, Any]:
    """The answer of `/api/show`. Raises NotFound for a name that is no model's or loaded adapter's."""
    infos = {alias: info for info in context.models() for alias in (*info.aliases, info.name)}
    adapter = next((one for one in context.adapters() if one.name == name), None)
    info = infos.get(adapter.model if adapter is not None else name)
    if info is None:  # an adapter that has been unloaded since it was found
        raise NotFound(f"The model {name!r:.80} does not exist.", "model")
    family = family_of(info)
    facts: dict[str, Any] = {
        "general.architecture": family,
        "general.basename": info.name,
        "general.parameter_count": info.num_parameters,
        f"{family}.context_length": info.max_model_len,
        f"{family}.vocab_size": info.vocab_size,
    }
    if info.embedding_size is not None:
        facts[f"{family}.embedding_length"] = info.embedding_size
    row = _row(name, info, Path(adapter.path if adapter is not None else info.folder), adapter)
    return {
        "license": "",
        "modelfile": f"FROM {info.root}\n",
        "parameters": "\n".join(f"{key} {value}" for key, value in sorted(info.sampling_defaults.items())),
        "template": formats.template or "",
        "details": row["details"],
        "model_info": facts,
        "capabilities": capabilities(info, formats),
        "modified_at": row["modified_at"],
    }


def capabilities(info: ModelInfo, formats: ModelFormats) -> list[str]:
    """What a model can do, in Ollama's words."""
    has: Mapping[str, bool] = {
        "completion": "generate" in info.tasks,
        "embedding": "embed" in info.tasks,
        "vision": "image" in info.modalities,
        "audio": "audio" in info.modalities,
        "tools": formats.tool_parser is not None,
        "thinking": formats.reasoning_parser is not None,
    }
    return [name for name, can in has.items() if can]


def family_of(info: ModelInfo) -> str:
    """The family of the architecture, such as llama."""
    return _TASK.sub("", info.architecture).lower() or "unknown"


def _row(name: str, info: ModelInfo, folder: Path, adapter: AdapterInfo | None = None) -> dict[str, Any]:
    files = _weights(folder)
    sizes = [file.stat() for file in files]
    newest = max((stat.st_mtime for stat in sizes), default=0.0)
    identity = f"{info.root} {info.dtype} {folder} {newest} {adapter.revision if adapter is not None else ''}"
    family = family_of(info)
    return {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(newest, UTC).isoformat().replace("+00:00", "Z"),
        "size": sum(stat.st_size for stat in sizes),
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": {
            "parent_model": adapter.model if adapter is not None else "",
            "format": "gguf" if any(file.suffix == ".gguf" for file in files) else "safetensors",
            "family": family,
            "families": [family],
            "parameter_size": _count(info.num_parameters),
            "quantization_level": info.dtype,
        },
    }


def _weights(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file())


def _count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)
