"""Families that see or hear on two ranks: the answers of one process, with adapters of language model and tower."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from family_checks import plugins
from media_checks import MediaModel, media_answers
from picture_families import families as picture_families
from picture_model import PictureModel
from rank_rig import on_one_and_several
from sound_families import families as sound_families
from sound_model import SoundModel

from quire.engine.parallel import follower
from quire.engine.parallel.adapters.adapter_reads import AdapterReads
from quire.engine.parallel.messages import ReadAdapter

PICTURES, SOUNDS = picture_families(), sound_families()


def check(model: MediaModel) -> None:
    settings = {
        **model.settings,
        "num_pages": 150,
        "max_num_batched_tokens": max(33, model.least_step),
    }
    one, two = on_one_and_several(model.folder, plugins(), lambda rig: media_answers(model, plugins(), rig), **settings)
    assert two == one
    assert len({tuple(tokens) for tokens in one}) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, tmp_path: Path) -> None:
    check(PictureModel(tmp_path, PICTURES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(name: str, tmp_path: Path) -> None:
    check(SoundModel(tmp_path, SOUNDS[name]))


@pytest.mark.slow
def test_a_rank_reads_adapters_when_it_has_loaded_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader asks for those of a modality as soon as it has loaded it itself."""
    asked, load, start = threading.Event(), follower.load_model, AdapterReads.start

    def load_late(*args: Any, **options: Any) -> Any:
        assert asked.wait(60)
        return load(*args, **options)

    def noted(reads: AdapterReads, command: ReadAdapter) -> Future[None]:
        reading = start(reads, command)
        asked.set()
        return reading

    monkeypatch.setattr(follower, "load_model", load_late)
    monkeypatch.setattr(AdapterReads, "start", noted)
    check(SoundModel(tmp_path, SOUNDS["granite-speech"]))
