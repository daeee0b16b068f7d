"""Models that see against transformers and peft, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_checks import plugins
from media_checks import check_media_family
from picture_families import families
from picture_model import PictureModel

FAMILIES = families()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_sees_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    check_media_family(PictureModel(tmp_path, FAMILIES[name]), plugins())
