"""A throw-away site folder for plugins: each is a module and a *.dist-info, as an installer would leave them."""

import importlib
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADER = "from quire.hooks.hookspecs import hookimpl\nfrom quire.records import *\n"


class PluginSite:
    """Plugins in a folder that is on the import path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []
        self.paths: list[str] = []

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

    def link(self, project: Path) -> None:
        """Make a project's plugins known from where they lie, as an editable installation would."""
        declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        info = self.folder / f"{declared['name'].replace('-', '_')}-{declared['version']}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n"
        (info / "METADATA").write_text(text)
        points = declared["entry-points"]["quire"]
        (info / "entry_points.txt").write_text("\n".join(["[quire]", *(f"{k} = {v}" for k, v in points.items())]))
        self.paths.append(str(project))
        sys.path.insert(0, str(project))
        importlib.invalidate_caches()

    def close(self) -> None:
        """Forget the modules and paths again."""
        for path in self.paths:
            sys.path.remove(path)
        for module in self.modules:
            sys.modules.pop(module, None)


@contextmanager
def installed(folder: Path, name: str, source: str) -> Iterator[PluginSite]:
    """A site in a new folder with one plugin."""
    folder.mkdir()
    made = PluginSite(folder)
    made.add(name, source)
    sys.path.insert(0, str(folder))
    try:
        yield made
    finally:
        sys.path.remove(str(folder))
        made.close()
