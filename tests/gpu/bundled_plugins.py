"""Makes the packages of a source tree importable, and its plugins known, where no distribution is installed."""

from __future__ import annotations

import importlib
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("platform", "kernels", "models", "adapters", "plugins")
HELPERS = ("rigs", "models", "families", "factories", "fakes", "kernels")
"""Folders of `tests/helpers` that the suite reads."""


def use_source_tree() -> None:
    """Call it before anything of Quire is imported. An installed distribution is left as it is."""
    paths = [str(ROOT / name) for name in SOURCE_ROOTS]
    paths += [str(Path(__file__).parent), *(str(ROOT / "tests" / "helpers" / name) for name in HELPERS)]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    try:
        distribution("quire-serve")
    except PackageNotFoundError:
        sys.path.append(_metadata_folder())
        importlib.invalidate_caches()


def _metadata_folder() -> str:
    """A folder with the metadata that an installer would write: name, version and entry points."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = Path(tempfile.mkdtemp(prefix="quire-metadata-"))
    info = folder / "quire_serve-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 0\n")
    lines = []
    for group, points in declared["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {module}" for name, module in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return str(folder)
