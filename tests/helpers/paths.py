"""Folders of the repository, and what child processes of tests need to import the helpers."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
HELPERS = os.pathsep.join(str(folder) for folder in sorted((TESTS / "helpers").iterdir()) if folder.is_dir())
"""For PYTHONPATH."""
