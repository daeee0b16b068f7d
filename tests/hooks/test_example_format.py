"""The quantized checkpoint format in examples/ passes its own tests, known as an installed distribution is."""

import os
import subprocess
import sys

import pytest
from hook_rig import ROOT
from plugin_site import PluginSite

EXAMPLE = ROOT / "examples" / "ternary_plugin"

pytestmark = pytest.mark.process


def test_the_example_passes_its_own_tests(site: PluginSite) -> None:
    site.link(EXAMPLE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(site.folder), str(EXAMPLE)]),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
