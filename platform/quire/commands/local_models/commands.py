"""The commands `pull`, `list`, `show` and `rm`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from quire.commands.local_models.cached import PARTIAL, CachedModel, cached_models, find_cached
from quire.commands.terminal_text import file_size, visible
from quire.errors import ConfigError
from quire.hooks.demos import from_demo
from quire.records import Command
from quire.settings.model_config import ModelConfig

PULL_DESCRIPTION = """\
Download a model or an adapter, so that it can be served without the internet later.

Files go to the Hugging Face cache ($HF_HOME, or ~/.cache/huggingface), which other programs share. An interrupted
download is resumed. For repositories that need a login: `hf auth login`, or $HF_TOKEN.

examples:
  platform pull Qwen/Qwen2.5-0.5B-Instruct
  platform pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M     one GGUF file of a repository
  platform serve Qwen/Qwen2.5-0.5B-Instruct"""

LIST_DESCRIPTION = """\
List the models of the Hugging Face cache by the names that `platform serve` takes.

partial: files of a repository without weights, such as a tokenizer, or a download that was interrupted."""

RM_DESCRIPTION = """\
Remove models from the Hugging Face cache, which other programs share.

Of a repository with several GGUF models, only the one that is named is removed."""

_COLUMNS = ("NAME", "KIND", "SIZE", "REVISION", "LAST USED")
_UNITS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--download-dir", metavar="FOLDER", help="folder of the cache (default: that of Hugging Face)")


def _configure_pull(parser: argparse.ArgumentParser) -> None:
    parser.description = PULL_DESCRIPTION
    parser.add_argument("model", metavar="MODEL", help="hub id (owner/name), or owner/name:QUANTIZATION for GGUF")
    parser.add_argument("--revision", help="branch, tag or commit (default: the newest)")
    hubs = "hub to download from; `list`, `show` and `rm` know only Hugging Face's"
    parser.add_argument("--hub", choices=("huggingface", "modelscope"), default="huggingface", help=hubs)
    _add_cache(parser)


def _pull(args: argparse.Namespace) -> int:
    from quire import hub

    if Path(args.model).exists():
        raise ConfigError(f"{args.model} is on this machine already.")
    config = ModelConfig(model=args.model, revision=args.revision, hub=args.hub, download_dir=args.download_dir)
    found = hub.locate(args.model, config)
    if found.gguf is not None:
        size = sum(file.stat().st_size for file in _parts(found.gguf))
    else:
        size = sum(file.stat().st_size for file in found.folder.rglob("*") if file.is_file())
    print(f"{args.model}: {file_size(size)} in {found.gguf or found.folder}")
    return 0


def _parts(gguf: Path) -> list[Path]:
    from quire_models.gguf.file.parts import part_names

    return [gguf.with_name(name) for name in part_names(gguf.name)]


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.description = LIST_DESCRIPTION
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the names")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    _add_cache(parser)


def _list(args: argparse.Namespace) -> int:
    models = cached_models(args.download_dir)
    if args.json:
        print(json.dumps([_as_json(model) for model in models], indent=1))
    elif args.quiet:
        print("".join(f"{visible(model.name)}\n" for model in models), end="")
    elif not models:
        print("There are no models in the cache. `platform pull MODEL` downloads one.", file=sys.stderr)
    else:
        rows = [_COLUMNS, *(_row(model) for model in models)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(model: CachedModel) -> tuple[str, ...]:
    size, used = file_size(model.num_bytes), age(time.time() - model.last_used)
    return visible(model.name), model.kind, size, model.revision[:8], used


def age(seconds: float) -> str:
    """A time in the past, in the largest unit that fits: "3 days ago"."""
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "now"


def _as_json(model: CachedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": model.kind,
        "bytes": model.num_bytes,
        "revision": model.revision,
        "last_used": model.last_used,
        "folder": str(model.folder),
    }


def _configure_show(parser: argparse.ArgumentParser) -> None:
    parser.description = "Describe a model: architecture, size, context, data type. No weight is read."
    parser.add_argument("model", metavar="MODEL", help="name from `platform list`, demo, folder or GGUF file")
    parser.add_argument("--json", action="store_true", help="print the description as JSON")
    _add_cache(parser)


def _show(args: argparse.Namespace) -> int:
    from quire.commands.local_models.details import details

    config = from_demo(ModelConfig(model=args.model, download_dir=args.download_dir), args.registry)
    found = {}
    if not Path(config.model).expanduser().exists():
        model = find_cached(args.model, cached_models(args.download_dir))
        found = {"name": model.name, "revision": model.revision}
        if model.kind == PARTIAL:
            raise ConfigError(f"{model.name} has no weights on this machine; `platform pull {model.name}` gets them.")
        config = ModelConfig(model=str(model.files[0] if model.kind == "gguf" else model.folder))
    found |= dict(details(config.model, config, args.registry))
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, value in found.items():
        print(f"{name:14} {visible(value)}")
    return 0


def _configure_rm(parser: argparse.ArgumentParser) -> None:
    parser.description = RM_DESCRIPTION
    parser.add_argument("names", nargs="+", metavar="MODEL", help="names from `platform list`")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_cache(parser)


def _rm(args: argparse.Namespace) -> int:
    from quire.commands.local_models.removal import remove

    models = cached_models(args.download_dir)
    chosen = list(dict.fromkeys(find_cached(name, models) for name in args.names))
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("The standard input is no terminal to ask at; add --yes to remove without asking.")
        listed = ", ".join(f"{model.name} ({file_size(model.num_bytes)})" for model in chosen)
        if input(f"Remove {visible(listed)}? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    for model in chosen:
        freed = remove(model, models)
        models = [other for other in models if other.name != model.name]
        print(f"{visible(model.name)} is removed; {file_size(freed)} are free again.")
    return 0


PULL = Command("pull", "download a model, or a GGUF file of one", _configure_pull, _pull)
LIST = Command("list", "list the models that were downloaded", _configure_list, _list)
SHOW = Command("show", "describe a model", _configure_show, _show)
RM = Command("rm", "remove models that were downloaded", _configure_rm, _rm)
