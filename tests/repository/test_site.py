"""The web site of the documentation."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|img|link)[^>]*?(?:src|href)=\"?(https?:[^\"> ]+)")


@pytest.mark.process
def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    words = ["mkdocs", "build", "--quiet", "-f", str(ROOT / "docs/site/mkdocs.yml"), "-d", str(tmp_path / "site")]
    env = {"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    built = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=env, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    pages = {str(page.relative_to(tmp_path / "site")): page.read_text() for page in (tmp_path / "site").rglob("*.html")}
    assert {
        "index.html",
        "http_api.html",
        "plugins/records.html",
        "files/examples/hook_tour.html",
        "guides/recipes.html",
    } <= pages.keys()
    assert not [url for page in pages.values() for url in LOADED.findall(page)]
    assert "/v1/chat/completions" in pages["http_api.html"]
    assert "max_completion_tokens" in pages["http_api.html"]
