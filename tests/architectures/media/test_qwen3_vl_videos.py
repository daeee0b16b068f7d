"""Videos of Qwen3-VL: frames, times, and logits against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_rig import rig_of
from llava_rig import our_logits, picture
from picture_families import families
from picture_model import FIRST_TOKEN, PictureModel

from quire.errors import BadRequest
from quire.hooks import registry
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PictureModel:
    return PictureModel(tmp_path_factory.mktemp("qwen3-vl"), families()["qwen3-vl"])


FRAMES = np.stack([np.asarray(picture(number, 20, 12)) for number in range(5)])


def test_frames_stand_after_their_times_and_logits_are_those_of_transformers(
    model: PictureModel, found: Registry
) -> None:
    with rig_of(model.folder, found) as rig:
        inputs = MultimodalProcessor(found, rig.engine.info, model.tokenizer)
        value = {"prompt": "see <|video_pad|> now", "multi_modal_data": {"video": (FRAMES, {"fps": 2.0})}}
        prompt = to_prompt(value, model.tokenizer, multimodal=inputs)
        frames = [medium.tensors["patches"] for medium in prompt.media]
        squares = len(frames[0]) // 4
        shown = "".join(
            f"<{time:.1f} seconds><|vision_start|>{'<|video_pad|>' * squares}<|vision_end|>"
            for time in (0.25, 1.25, 2.0)  # the last frame is repeated
        )
        assert list(prompt.token_ids) == model.tokenizer.encode(f"see {shown} now")
        ours = our_logits(rig.engine.loaded, prompt)
        with pytest.raises(BadRequest, match="at most 200 times"):
            to_prompt(
                {"prompt": "<|video_pad|>", "multi_modal_data": {"video": np.zeros((2, 8, 2000, 3), np.uint8)}},
                model.tokenizer,
                multimodal=inputs,
            )
    ids = torch.tensor([prompt.token_ids])
    grid = prompt.media[0].tensors["grid"]
    with torch.inference_mode():
        wanted = model.reference(
            input_ids=ids,
            pixel_values_videos=torch.cat([some.expand(-1, -1, 2, -1).flatten(1) for some in frames]),
            video_grid_thw=torch.tensor([[len(frames), *grid[1:].tolist()]]),
            mm_token_type_ids=2 * (ids == FIRST_TOKEN + 1).long(),
        ).logits[0]
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=0)
