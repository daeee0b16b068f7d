"""Every family of `moe_cases` gives what transformers and peft give."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_case import FamilyCase
from family_checks import check_family
from moe_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_family_gives_what_transformers_gives(case: FamilyCase, tmp_path: Path) -> None:
    check_family(case, tmp_path)
