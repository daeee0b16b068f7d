"""The scripts that make the demo models, as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

SOURCES = Path(__file__).resolve().parents[3] / "examples" / "demo_models"


@contextmanager
def modules_of(*names: str) -> Iterator[SimpleNamespace]:
    """Modules such as "data.chat.world", each by its last name. All modules of the example are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(SOURCES))
    try:
        yield SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(SOURCES))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(SOURCES)):
                del sys.modules[name]
