"""What Voxtral refuses; `test_sound_families` compares it with transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_rig import rig_of
from sound_families import families
from sound_model import RATE, SoundModel

from quire.errors import CheckpointError, Unprocessable
from quire.hooks import registry
from quire.media.audio import Audio
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor


def test_audio_without_samples_and_widths_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    model, found = SoundModel(tmp_path, families()["voxtral"]), registry.load(None)
    with rig_of(model.folder, found) as rig:
        media = MultimodalProcessor(found, rig.engine.info, model.tokenizer)
        silent = Audio(samples=np.zeros(0, np.float32), rate=RATE)
        value = {"prompt": "[AUDIO]", "multi_modal_data": {"audio": silent}}
        with pytest.raises(Unprocessable, match="The audio is empty"):
            to_prompt(value, model.tokenizer, multimodal=media)
    path = model.folder / "config.json"
    changed = path.read_text().replace('"max_source_positions": 100', '"max_source_positions": 101')
    path.write_text(changed)
    with (
        pytest.raises(CheckpointError, match="`max_source_positions` 101 a multiple of their ratio"),
        rig_of(model.folder),
    ):
        pass
