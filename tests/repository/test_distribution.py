"""The source distribution and the wheel, built as continuous integration publishes them, and the wheel installed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

pytestmark = [pytest.mark.process, pytest.mark.slow]


def run(*words: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=240, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, folder: Path, *targets: str) -> None:
    words = [word for target in targets for word in ("-t", target)]
    run(sys.executable, "-m", "hatchling", "build", *words, "-d", folder, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel of the repository."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist", "wheel")
    return folder


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_holds_every_file_of_the_packages(built: Path) -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES).splitlines()
    if not listed:
        pytest.skip("not a git checkout")
    inside = {name.partition("/")[2] for name in listed if (ROOT / name).is_file()}
    assert names(only(built, "*.whl")) == inside


def test_the_source_distribution_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    build(only(tmp_path, "quire_serve-*"), tmp_path / "again", "wheel")
    assert names(only(tmp_path / "again", "*.whl")) == names(only(built, "*.whl"))


def test_the_installed_wheel_has_both_commands_and_all_plugins(built: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty")
    binaries = tmp_path / "empty" / "bin"
    site = Path(run(binaries / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", "--no-deps", "--no-index", "--no-cache-dir", only(built, "*.whl"))
    version = run(sys.executable, "-c", "import quire; print(quire.__version__)").strip()
    # `--version` needs no other package; the rest borrows the dependencies of this environment.
    assert [run(binaries / name, "--version").strip() for name in ("platform", "quire-serve")] == [version, version]
    (site / "borrowed.pth").write_text("\n".join(folder for folder in sys.path if folder.endswith("-packages")))
    assert "Settings come from the command line" in run(binaries / "quire-serve", "--help", cwd=tmp_path)
    listed = run(binaries / "platform", "plugins", cwd=tmp_path)
    assert all(name in listed for name in PROJECT["project"]["entry-points"]["quire"])
