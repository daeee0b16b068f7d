"""Every family of `latent_cases` gives what transformers and peft give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from family_case import FamilyCase
from family_checks import Family, check_family, check_logits
from latent_cases import CASES

from quire_models.modules.attention.latent import LatentSelfAttention


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_family_gives_what_transformers_gives(case: FamilyCase, tmp_path: Path) -> None:
    check_family(case, tmp_path)


def test_the_expansion_is_computed_only_for_adapters_that_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    plain = LatentSelfAttention.expansion

    def counted(module: LatentSelfAttention, adapters: Any) -> Any:
        computed.append(adapters is not None)
        return plain(module, adapters)

    monkeypatch.setattr(LatentSelfAttention, "expansion", counted)
    for name, lora in ("others", ("q_proj", "o_proj")), ("expansion", ("kv_b_proj",)):
        computed.clear()
        check_logits(Family(replace(CASES[0], lora=lora, variants={}), tmp_path / name))
        assert any(computed) == (name == "expansion")
