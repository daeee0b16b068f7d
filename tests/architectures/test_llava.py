"""LLaVA 1.5, NeXT and OneVision against transformers, on tiny random models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from engine_rig import Rig, greedy, rig_of
from llava_rig import CASES, IMAGE, PROMPTS, VIDEO, Model, our_logits, picture
from safetensors.torch import load_file, save_file

from quire import LLM
from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.hooks import registry
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_models import TowerCall
from quire_models.loading import checkpoint
from quire_models.towers.tower import SupportsDummyInput
from quire_testing import check_input_mapper


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llava"), CASES[request.param])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llava"), CASES["1.5"])


@pytest.fixture
def rig(small: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(small.folder, found, page_size=4) as made:
        yield made


def test_logits_are_those_of_transformers(model: Model, found: Registry) -> None:
    with rig_of(model.folder, found) as rig:
        loaded = rig.engine.loaded
        for text, pictures in PROMPTS:
            prompt = model.prompt(found, loaded.info, text, *pictures)
            torch.testing.assert_close(our_logits(loaded, prompt), model.logits(prompt, *pictures), atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def asked(model: Model, found: Registry) -> list[tuple[Prompt, list[int]]]:
    """Prompts, and the 32 tokens that transformers gives after each."""
    with rig_of(model.folder, found) as rig:
        prompts = [model.prompt(found, rig.engine.info, text, *pictures) for text, pictures in PROMPTS]
    return [(prompt, model.greedy(prompt, *pictures)) for prompt, (_, pictures) in zip(prompts, PROMPTS, strict=True)]


@pytest.mark.parametrize("max_tokens", [7, 33, 600])
def test_greedy_tokens_are_those_of_transformers_in_one_batch_however_it_is_cut(
    model: Model, found: Registry, asked: list[tuple[Prompt, list[int]]], max_tokens: int
) -> None:
    with rig_of(model.folder, found, max_num_batched_tokens=max_tokens, num_pages=100) as rig:
        for _ in range(2):  # the second time pages are found
            ids = [rig.add(prompt, greedy(32, ignore_eos=True)) for prompt, _ in asked]
            answers = rig.drain()
            assert [answers[request_id, 0].token_ids for request_id in ids] == [tokens for _, tokens in asked]
        assert rig.engine.stats().num_cached_tokens_total > 0


# --- what is shared ----------------------------------------------------------------------------------


def ask(rig: Rig, prompt: Prompt, **params: Any) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were found."""
    request_id = rig.add(prompt, greedy(8, ignore_eos=True, **params))
    answer = rig.drain()[request_id, 0]
    assert answer.last.error is None
    return answer.token_ids, answer.deltas[0].num_cached_tokens or 0


def test_the_same_picture_asked_twice_goes_through_the_tower_once_and_its_prefix_is_found(
    small: Model, found: Registry, rig: Rig
) -> None:
    first = small.prompt(found, rig.engine.info, "see <image>: what is it?", picture(1))
    second = small.prompt(found, rig.engine.info, "see <image>: and where?", picture(1).copy())
    ask(rig, first)
    assert ask(rig, first)[1] == 32
    assert ask(rig, second)[1] >= 20  # as far as the two prompts are the same
    elsewhere = small.prompt(found, rig.engine.info, "<image>", picture(1))
    assert ask(rig, elsewhere)[1] == 0
    stats = rig.engine.stats()
    assert (stats.num_media_encoded_total, stats.num_media_found_total) == (1, 1)


def test_two_pictures_of_equal_size_never_share_pages(small: Model, found: Registry, rig: Rig) -> None:
    prompts = [small.prompt(found, rig.engine.info, "see <image>?", picture(seed)) for seed in (1, 2)]
    assert prompts[0].token_ids == prompts[1].token_ids
    answers = [ask(rig, prompt) for prompt in prompts]
    assert [cached for _, cached in answers] == [0, 4]  # the page before the picture
    assert answers[0][0] != answers[1][0]
    assert rig.engine.stats().num_media_encoded_total == 2


# --- folders -----------------------------------------------------------------------------------------


def copied(small: Model, folder: Path) -> Path:
    for file in small.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


PUBLISHED = {"vision_tower.": "vision_tower.vision_model."}
MODULES = {
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
}


@pytest.mark.parametrize("prefixes", [PUBLISHED, MODULES], ids=["as first published", "as modules are called"])
def test_checkpoints_of_other_times_load(
    small: Model, found: Registry, tmp_path: Path, prefixes: dict[str, str]
) -> None:
    folder = copied(small, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    moved = {}
    for name, tensor in tensors.items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        moved[prefixes.get(old, "") + name.removeprefix(old)] = tensor
    assert moved.keys() != tensors.keys()
    save_file(moved, folder / "model.safetensors", {"format": "pt"})
    with rig_of(folder, found) as rig:
        prompt = small.prompt(found, rig.engine.info, "<image>!", picture(1))
        torch.testing.assert_close(
            our_logits(rig.engine.loaded, prompt), small.logits(prompt, picture(1)), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vision_feature_layer": -9}, r"`vision_feature_layer`: layers must be from -4 to 3, got \[-9\]"),
        ({"text_config": {"model_type": "gpt2"}}, "language model is 'gpt2'; what can be built is llama"),
        ({"vision_config": {"model_type": "dinov2"}}, "image encoder is 'dinov2'; what can be built is clip"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(
    small: Model, found: Registry, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = copied(small, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=said), rig_of(folder, found):
        pass


def changed(folder: Path, **changes: Any) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("case", "change", "said"),
    [
        ("1.5", lambda folder: (folder / "preprocessor_config.json").unlink(), "has no image processor that can be"),
        (
            "1.5",
            lambda folder: changed(folder, crop_size={"height": 21, "width": 21}),
            "of 21 × 21 pixels; the",
        ),
        ("NeXT", lambda folder: changed(folder, image_grid_pinpoints=[[28, 56]]), "`image_grid_pinpoints` of config"),
        ("NeXT", lambda folder: changed(folder, crop_size={"height": 14, "width": 14}), "14 × 14 pixels; the model"),
    ],
)
def test_a_processor_that_does_not_fit_the_model_stops_the_start(
    found: Registry, tmp_path: Path, case: str, change: Callable[[Path], None], said: str
) -> None:
    model = Model(tmp_path, CASES[case])
    change(tmp_path)
    with rig_of(tmp_path, found) as rig, pytest.raises(CheckpointError, match=said):
        model.prompt(found, rig.engine.info, "<image>", picture(1))


# --- mappers -----------------------------------------------------------------------------------------


def test_mappers_give_as_many_ids_as_the_tower_gives_rows(model: Model, found: Registry) -> None:
    (record,) = (
        mapper
        for mapper in found.all("quire_input_mappers")
        if mapper.architecture == model.case.architecture and mapper.modality == "image"
    )
    architecture = found.by_hook("quire_architectures")[record.architecture]
    config = checkpoint.read_config(model.folder)
    sizes = [(1, 1), (1, 200), (200, 1), (90, 3), (28, 28), (56, 28), (57, 28), (90, 91), (113, 40)]
    pictures = [picture(seed, *size) for seed, size in enumerate(sizes)]
    check_input_mapper(record, architecture, config, pictures, folder=model.folder)


def test_a_picture_that_would_become_enormous_is_refused(model: Model, found: Registry) -> None:
    with rig_of(model.folder, found) as rig:
        for size in ((1, 201), (201, 1)):
            with pytest.raises(BadRequest, match="pixels; one side may be at most 200 times the other"):
                model.prompt(found, rig.engine.info, "<image>", picture(1, *size))


@pytest.fixture(scope="module")
def onevision(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llava"), CASES["OneVision"])


def test_videos_are_those_of_transformers_among_pictures(onevision: Model, found: Registry) -> None:
    frames = np.stack([np.asarray(picture(seed, 44, 32)) for seed in range(5)])
    pixels = onevision.processor_of_frames()(images=list(frames), return_tensors="pt")["pixel_values"]
    tokenizer = Tokenizer.load(onevision.folder)
    with rig_of(onevision.folder, found, max_num_batched_tokens=11) as rig:
        value = {
            "prompt": "see <video>, <image> and <video>",
            "multi_modal_data": {"video": [frames, frames[2:3]], "image": picture(9)},
        }
        prompt = to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, rig.engine.info, tokenizer))
        assert [medium.length for medium in prompt.media if medium.modality == "video"] == [5 * 4 + 1, 4 + 1]
        request_id = rig.add(prompt, greedy(32, ignore_eos=True))
        answer = rig.drain()[request_id, 0].token_ids
    ids = torch.tensor([prompt.token_ids])
    reference = onevision.reference
    with torch.inference_mode():
        video = [reference.model.get_video_features(some[None]).pooler_output[0] for some in (pixels, pixels[2:3])]
        embeds = reference.get_input_embeddings()(ids)
        embeds[ids == VIDEO] = torch.cat(video)
        image = onevision.processor(images=picture(9), return_tensors="pt")
        embeds[ids == IMAGE] = reference.model.get_image_features(
            image["pixel_values"], image["image_sizes"]
        ).pooler_output[0]
        made = reference.generate(
            inputs_embeds=embeds, do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0
        )
    assert answer == made[0].tolist()


def test_a_number_of_frames_that_cannot_be_stops_the_start(onevision: Model) -> None:
    with pytest.raises(ConfigError, match=r"--llava\.frames must be at least 1; got 0"):
        LLM(str(onevision.folder), plugins=["llava"], num_pages=16, plugin_options={"llava": {"frames": 0}})


def test_a_picture_among_others_is_seen_as_a_whole_however_large(onevision: Model, found: Registry) -> None:
    large, tiles = picture(1, 5000, 100), onevision.case.config["vision_config"]
    with rig_of(onevision.folder, found) as rig:
        alone = onevision.prompt(found, rig.engine.info, "<image>", large)
        among = onevision.prompt(found, rig.engine.info, "<image><image>", large, picture(2))
    assert len(alone.media[0].tensors["pixels"]) > 1
    for medium in among.media:
        assert medium.length == (tiles.image_size // tiles.patch_size) ** 2 + 1
        assert medium.tensors["pixels"].shape == (1, 3, tiles.image_size, tiles.image_size)


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(model: Model, found: Registry) -> None:
    with rig_of(model.folder, found) as rig:
        tower: Any = rig.engine.loaded.module.tower
        assert isinstance(tower, SupportsDummyInput)
        item, num_rows = tower.dummy_input()
        first, second = tower([item, item], TowerCall("cpu"))
    assert first.shape == second.shape == (num_rows, 64)
    most = 1 if model.case.architecture == "LlavaForConditionalGeneration" else 5
    assert len(item["pixels"]) == most


# --- from outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}])
def test_the_library_answers_where_the_marker_is_a_token_of_its_own(
    small: Model, tmp_path: Path, settings: dict[str, str]
) -> None:
    folder = copied(small, tmp_path)
    tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens.add_special_tokens([tokenizers.AddedToken("<image>", special=True, normalized=False)])
    tokens.save(str(folder / "tokenizer.json"))
    prompts = [{"prompt": "a <image>!", "multi_modal_data": {"image": picture(seed)}} for seed in (1, 2)]
    with LLM(str(folder), plugins=["llava"], num_pages=64, **{"dtype": "float32", **settings}) as llm:
        outputs = llm.generate([*prompts, "text"], greedy(8, ignore_eos=True), use_tqdm=False)
    assert outputs[0].prompt_token_ids == [*b"a ", *[IMAGE] * 16, *b"!"]
    assert outputs[0].outputs[0].token_ids != outputs[1].outputs[0].token_ids
    if not settings:
        prompt = Prompt(token_ids=tuple(outputs[0].prompt_token_ids))
        assert outputs[0].outputs[0].token_ids == small.greedy(prompt, picture(1), count=8)
