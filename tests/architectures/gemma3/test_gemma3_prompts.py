"""How Gemma 3 expands images in prompts into tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from gemma3_rig import BEGIN, PROMPTS, SOFT, STOP, TOKENS, Model
from llava_rig import picture
from PIL import Image

from quire.errors import BadRequest
from quire.records import Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading import checkpoint
from quire_testing import check_input_mapper

# --- words around pictures ----------------------------------------------------------------------------


def theirs(model: Model, text: str, pictures: list[Image.Image], **settings: Any) -> tuple[list[int], Any]:
    """Ids and pixels that transformers' processor makes."""
    from transformers import AutoTokenizer, Gemma3Processor

    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    processor = Gemma3Processor(model.processor, tokenizer, image_seq_length=TOKENS)
    made = processor(text=text, images=pictures, return_tensors="pt", images_kwargs=settings)
    return made["input_ids"][0].tolist(), made["pixel_values"]


@pytest.mark.parametrize(("text", "pictures"), [(text, pictures) for text, pictures in PROMPTS if pictures])
def test_ids_are_those_of_transformers_also_where_words_merge_with_the_prompt(
    narrow: Model, found: Registry, rig: Rig, text: str, pictures: list[Image.Image]
) -> None:
    prompt = narrow.prompt(found, rig.engine.info, text, *pictures)
    ids, pixels = theirs(narrow, text, pictures)
    assert list(prompt.token_ids) == ids
    assert [prompt.token_ids[m.start - 1] for m in prompt.media] == [BEGIN] * len(pictures)
    assert [prompt.token_ids[m.start + m.length] for m in prompt.media] == [STOP] * len(pictures)
    torch.testing.assert_close(torch.cat([m.tensors["pixels"] for m in prompt.media]), pixels)


def test_parts_of_long_pictures_are_shown_too_if_the_processor_says_so(found: Registry, tmp_path: Path) -> None:
    settings = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20}
    model, pictures = Model(tmp_path, **settings), [picture(1, 100, 30), picture(2, 40, 40), picture(3, 30, 64)]
    text = "<start_of_image> and <start_of_image>\n<start_of_image>"
    more = {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    with rig_of(tmp_path, found, max_num_batched_tokens=50) as rig:
        prompt = model.prompt(found, rig.engine.info, text, *pictures)
        ids, pixels = theirs(model, text, pictures, **settings, **more)
        assert list(prompt.token_ids) == ids
        assert len(prompt.media) == 1 + 3 + 1 + 1 + 2
        torch.testing.assert_close(torch.cat([m.tensors["pixels"] for m in prompt.media]), pixels)
        request_id = rig.add(prompt, greedy(32, ignore_eos=True))
        answer = rig.drain()[request_id, 0].token_ids
    model.processor = lambda images, return_tensors: {"pixel_values": pixels}
    assert answer == model.greedy(prompt, *pictures)


def test_a_prompt_of_ids_gets_the_words_as_well(narrow: Model, found: Registry, rig: Rig) -> None:
    prompt = narrow.prompt(found, rig.engine.info, [*b"a\n", BEGIN, *b"b"], picture(1))
    assert list(prompt.token_ids) == [*b"a\n", 256, BEGIN, *[SOFT] * TOKENS, STOP, 256, *b"b"]


def test_a_prompt_that_has_the_inside_of_a_picture_in_its_text_is_refused(
    narrow: Model, found: Registry, rig: Rig
) -> None:
    with pytest.raises(BadRequest, match="contains text that is reserved for the inside of image"):
        narrow.prompt(found, rig.engine.info, "<image_soft_token> <start_of_image>", picture(1))
    with pytest.raises(BadRequest, match="has the marker '<start_of_image>' 1 times"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1), picture(2))


def test_the_mapper_gives_as_many_ids_as_the_tower_gives_rows(narrow: Model, found: Registry) -> None:
    (record,) = (m for m in found.all("quire_input_mappers") if m.architecture == "Gemma3ForConditionalGeneration")
    architecture, config = (
        found.by_hook("quire_architectures")[record.architecture],
        checkpoint.read_config(narrow.folder),
    )
    pictures = [picture(seed, *size) for seed, size in enumerate([(1, 1), (1, 200), (90, 3), (57, 28)])]
    tokenizer = Tokenizer.load(narrow.folder)
    check_input_mapper(record, architecture, config, pictures, folder=narrow.folder, tokenizer=tokenizer)


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(narrow: Model, found: Registry) -> None:
    from quire_models import TowerCall

    with rig_of(narrow.folder, found) as rig:
        tower: Any = rig.engine.loaded.module.tower
        item, num_rows = tower.dummy_input()
        first, second = tower([item, item], TowerCall("cpu"))
    assert first.shape == second.shape == (num_rows, 64)
