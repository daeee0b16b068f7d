"""Positions in several axes, as media bring them: from the mapper to the angles that keys are turned by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quire.engine.multimodal.rope_positions import RopePositions
from quire.engine.runner.input_batch import InputBatch
from quire.engine_process.wire.protocol import Submit, decode_to_engine, encode
from quire.errors import BadRequest, CheckpointError
from quire.params.sampling import SamplingParams
from quire.text.inputs.prompt_assembly import digest
from quire.types import Chunk, Media, ModelInfo, Prompt, Request
from quire.types.request_validation import validate_request
from quire_models import Rope
from quire_models.step.rope import RotaryAngles, axes_of_pairs, frequencies

GRID = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
"""A picture of two rows and three columns."""


def picture(start: int, positions: Any = GRID) -> Media:
    length = 6 if positions is None else positions.shape[-1]
    return Media(modality="image", start=start, length=length, digest="d", tensors={}, positions=positions)


# --- of a seq ----------------------------------------------------------------------------------------


def test_text_goes_on_one_beyond_the_largest_of_a_medium() -> None:
    found = RopePositions.from_media([picture(2), picture(9)], 17, 3)
    assert found is not None
    assert found.prompt.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 6, 6, 6, 6, 9, 10],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 6, 7, 7, 7, 9, 10],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10],
    ]
    assert found.shift == -6


def test_a_medium_without_positions_counts_as_text() -> None:
    found = RopePositions.from_media([picture(1, None), picture(8, np.array([[0, 9]]))], 12, 1)
    assert found is not None
    assert found.prompt.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 17, 18, 19]]
    assert found.shift == 8
    assert RopePositions.from_media([picture(1, None)], 12, 3) is None


# --- of a step ---------------------------------------------------------------------------------------


def rows_of(*media: tuple[Media, ...]) -> InputBatch:
    rows = InputBatch(8, 4, 16, 3)
    for seq_id, some in enumerate(media):
        rows.start(seq_id, None, range(10), None, media=some)
    return rows


def chunk(seq_id: int, start: int, count: int) -> Chunk:
    return Chunk(seq_id, start, [0] * count, [seq_id], samples=False)


def test_a_step_may_begin_and_end_within_a_medium_and_go_beyond_the_prompt() -> None:
    rows = rows_of((picture(2),), ())
    layout = rows.build_inputs([chunk(0, 4, 2), chunk(1, 0, 3)])
    assert layout.rope_positions is not None
    assert layout.rope_positions.tolist() == [[2, 2, 0, 1, 2], [2, 3, 0, 1, 2], [4, 2, 0, 1, 2]]
    layout = rows.build_inputs([chunk(1, 3, 1), chunk(0, 6, 6)])
    assert layout.rope_positions is not None
    assert layout.rope_positions.tolist() == [
        [3, 2, 2, 5, 6, 7, 8],
        [3, 3, 3, 5, 6, 7, 8],
        [3, 3, 4, 5, 6, 7, 8],
    ]
    alone = layout.token_range(2, 3, 16).rope_positions
    assert alone is not None
    assert alone.tolist() == [[2], [3], [4]]
    last = layout.row(0).rope_positions
    assert last is not None
    assert last.tolist() == [[3], [3], [3]]


def test_steps_in_which_no_seq_needs_them_have_none() -> None:
    rows = rows_of((picture(2),), ())
    assert rows.build_inputs([chunk(1, 0, 3)]).rope_positions is None
    rows.end(0)
    rows.start(2, None, range(4), None)
    assert rows.build_inputs([chunk(1, 3, 1), chunk(2, 0, 4)]).rope_positions is None


# --- angles ------------------------------------------------------------------------------------------


def angles_of(rope: Rope, positions: Any, rope_positions: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    given = None if rope_positions is None else torch.as_tensor(rope_positions)
    fwd: Any = SimpleNamespace(positions=torch.as_tensor(positions), rope_positions=given, step_cache={})
    return RotaryAngles(rope, torch.device("cpu")).for_step(fwd)


def test_each_section_turns_by_its_own_axis() -> None:
    rope = Rope(16, sections=(4, 2, 2))
    at = np.array([[3, 5], [7, 1], [2, 9]])
    cos, sin = angles_of(rope, [0, 1], at)
    turned = frequencies(rope) * torch.from_numpy(at[[0, 0, 0, 0, 1, 1, 2, 2]].T).float()
    assert torch.equal(cos, turned.cos())
    assert torch.equal(sin, turned.sin())


def test_axial_sections_have_the_frequencies_of_smaller_embeddings() -> None:
    rope = Rope(16, sections=(4, 4), axial=True)
    assert torch.equal(frequencies(rope), torch.cat([frequencies(Rope(8))] * 2))


@pytest.mark.parametrize("sections", [(), (16, 24, 24)])
def test_text_turns_the_same_to_the_last_bit_beside_media_and_without(sections: tuple[int, ...]) -> None:
    rope, positions = Rope(128, 1e6, sections=sections), np.arange(300)
    plain = angles_of(rope, positions)
    beside = angles_of(rope, positions, np.repeat(positions[None], rope.axes, 0))
    fwd: Any = SimpleNamespace(rope_positions=None, rows=SimpleNamespace(max_context=300))
    table = RotaryAngles(rope, torch.device("cpu")).table(fwd)
    assert table is not None
    for a, b, c in zip(plain, beside, table, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c[:300])
    alone = angles_of(rope, [0], np.full((rope.axes, 1), 211))
    assert torch.equal(alone[0][0], plain[0][211])


def test_sections_come_from_the_config_and_must_fill_the_head() -> None:
    config = SimpleNamespace(rope_parameters={"rope_type": "default", "mrope_section": [2, 1, 1]})
    assert Rope.from_config(config, 8).sections == (2, 1, 1)
    assert Rope.from_config(config, 8).axes == 3
    with pytest.raises(CheckpointError, match=r"mrope_section \[2, 1, 1\]; its sum must be 8"):
        Rope.from_config(config, 16)
    config.rope_parameters["mrope_interleaved"] = True
    mixed = Rope.from_config(config, 8)
    assert mixed.mixed
    assert axes_of_pairs(mixed).tolist() == [0, 1, 2, 0]


# --- on the way --------------------------------------------------------------------------------------


def test_positions_travel_to_the_host() -> None:
    prompt = Prompt(token_ids=tuple(range(9)), media=(picture(1), picture(7, None)))
    request = Request(id="r", prompt=prompt, params=SamplingParams())
    message: Any = decode_to_engine(encode(Submit.from_request("m", request)))
    placed, plain = message.to_request().prompt.media
    assert placed.positions is not None
    assert (placed.positions.dtype, placed.positions.tolist()) == (np.int64, GRID.tolist())
    assert plain.positions is None


@pytest.mark.parametrize("wrong", [GRID[:2], GRID[:, :5], GRID - 1, GRID.astype(float)])
def test_positions_of_another_shape_or_kind_are_refused(wrong: Any) -> None:
    info = ModelInfo(
        name="m",
        aliases=(),
        root="",
        folder="",
        architecture="",
        dtype="",
        device="",
        max_model_len=99,
        vocab_size=99,
        eos_ids=(),
        num_pages=9,
        page_size=16,
        num_parameters=0,
        modalities=("image",),
        position_axes=3,
    )
    medium = Media(modality="image", start=1, length=6, digest="d", tensors={}, positions=wrong)
    prompt = Prompt(token_ids=tuple(range(9)), media=(medium,))
    with pytest.raises(BadRequest, match=r"Positions of image must be whole numbers from 0 on, of shape \[3, 6\]"):
        validate_request(Request(id="r", prompt=prompt, params=SamplingParams()), info)


def test_positions_are_a_part_of_what_a_digest_names() -> None:
    tensors = {"pixels": torch.zeros(3)}
    different = [None, GRID, GRID + 1, GRID.reshape(2, 9), GRID[:0]]
    assert len({digest("image", tensors, positions) for positions in different}) == len(different)
    assert digest("image", tensors, GRID) == digest("image", tensors, GRID.copy())
