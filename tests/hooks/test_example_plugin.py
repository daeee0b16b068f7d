"""The third-party packages in examples/: installed into a fresh environment, tested there, and served."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx
import pytest
from serving import serving

from quire_testing import tiny_model

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "starcoder_plugin"
HYBRID = ROOT / "examples" / "griffin_plugin"
MAX_LINES = 65
MAX_CODE_LINES = 60
"""Of the hybrid, without blank lines and docstrings."""


def run(*words: object) -> str:
    done = subprocess.run(
        [*map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with Quire and the example really installed, and the heavy libraries borrowed from ours."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    made = folder / "bin" / "python"
    site = Path(run(made, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    borrowed = dict.fromkeys([sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]])
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    pip = (sys.executable, "-m", "pip", "--python", made, "--disable-pip-version-check", "--no-cache-dir")
    sources = [
        shutil.copytree(example, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for example, name in ((EXAMPLE, "source"), (HYBRID, "hybrid"))
    ]
    run(*pip, "install", "--no-compile", "--no-deps", "--no-build-isolation", "--no-index", ROOT, *sources)
    return made


def test_the_example_is_short() -> None:
    lines = {p.name: len(p.read_text().splitlines()) for p in EXAMPLE.iterdir() if p.is_file()}
    assert set(lines) == {"pyproject.toml", "quire_starcoder2.py", "test_starcoder2.py"}
    assert sum(lines.values()) < MAX_LINES


def test_the_hybrid_is_short() -> None:
    files = [path.read_text() for path in (HYBRID / "quire_griffin").glob("*.py")]
    lines = [line.strip() for source in files for line in source.splitlines()]
    assert len([line for line in lines if line and not line.startswith('"""')]) <= MAX_CODE_LINES


def test_quire_in_the_fresh_environment_is_the_installed_one(python: Path) -> None:
    where = run(
        python, "-c", "import quire, quire_models, quire_plugins.architectures.llama as llama; print(quire.__file__)"
    )
    assert where.startswith(str(python.parents[1]))
    demo = "from quire.hooks.registry import load; print(*(d.folder() for d in load().all('quire_demo_models')))"
    for folder in run(python, "-c", demo).split():
        assert folder.startswith(str(python.parents[1]))
        assert Path(folder, "config.json").is_file()


def test_the_examples_pass_their_own_tests_in_the_fresh_environment(python: Path) -> None:
    root = python.parents[1]
    printed = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", root, root / "source", root / "hybrid"
    )
    assert "5 passed" in printed


def test_the_platform_lists_the_example_but_does_not_load_it_unasked(python: Path) -> None:
    listed = run(python, "-m", "quire.cli", "plugins", "--json")
    (row,) = [row for row in json.loads(listed) if row["name"] == "starcoder2"]
    assert (row["distribution"], row["version"], row["enabled"]) == ("quire-starcoder2", "0.1", False)


def test_the_example_serves_a_model_over_http(python: Path, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", "Starcoder2ForCausalLM", sliding_window=8)
    words = ("--plugins", "+starcoder2", f"star={model}", "--num-pages", 64, "--dtype", "float32")
    with serving(*words, python=python) as server:
        body = {"model": "star", "prompt": "def f(", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5
        plugins = httpx.get(f"{server.url}/plugins", timeout=60).text
        assert "quire-starcoder2" in plugins
