"""Ten architectures without a plugin, drawn from transformers' list: logits, tokens and adapters as in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_architectures import drawn
from family_checks import check_family

SEED, COUNT = 24, 10


@pytest.mark.parametrize("number", range(COUNT))
def test_an_architecture_without_a_plugin_serves_like_transformers(number: int, tmp_path: Path) -> None:
    check_family(drawn(SEED, COUNT)[number], tmp_path)
