"""A throw-away site folder for plugins: each is a module and a *.dist-info, as an installer would leave them."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

HEADER = "from quire.hookspecs import hookimpl\nfrom quire.records import *\n"


class PluginSite:
    """Plugins in a folder that is on the import path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def add(self, name: str, source: str, *, distribution: str | None = None, version: str = "1.0") -> str:
        """Install a plugin whose module holds `source`; gives the module's name."""
        distribution = distribution or f"quire-{name}"
        module = f"site_{distribution.replace('-', '_')}_{name.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(HEADER + textwrap.dedent(source))
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        points = info / "entry_points.txt"
        known = points.read_text() if points.exists() else "[quire]\n"
        points.write_text(f"{known}{name} = {module}\n")
        self.modules.append(module)
        importlib.invalidate_caches()
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    """An empty plugin site."""
    folder = tmp_path / "plugin_site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = PluginSite(folder)
    yield made
    for module in made.modules:
        sys.modules.pop(module, None)
