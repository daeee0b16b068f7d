"""The modules of the page that need no browser, in Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from quire_page.files import FOLDER

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_modules_do_what_they_say(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "static")
    (folder / "package.json").write_text('{"type": "module"}')
    tests = Path(__file__).with_name("modules.test.mjs")
    done = subprocess.run(
        [NODE, "--test", tests],
        env={**os.environ, "STATIC": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 12" in done.stdout
