from collections.abc import Iterator
from pathlib import Path

import pytest
from built_ops import empty_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for compiled ops, empty; the sources are one short file."""
    with empty_cache(tmp_path, monkeypatch) as folder:
        yield folder
