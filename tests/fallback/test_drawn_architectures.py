"""Architectures of transformers through the fallback: logits, tokens and adapters as in transformers.

Ten that have no plugin are drawn from transformers' list, and two that keep state beside keys and values, which plugins
have too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_architectures import drawn, drawn_with_state
from family_checks import check_family

SEED, COUNT, WITH_STATE = 24, 10, 2


@pytest.mark.parametrize("number", range(COUNT))
def test_an_architecture_without_a_plugin_serves_like_transformers(number: int, tmp_path: Path) -> None:
    check_family(drawn(SEED, COUNT)[number], tmp_path)


@pytest.mark.parametrize("number", range(WITH_STATE))
def test_an_architecture_with_state_serves_like_transformers(number: int, tmp_path: Path) -> None:
    check_family(drawn_with_state(SEED, WITH_STATE)[number], tmp_path)
