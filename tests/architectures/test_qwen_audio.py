"""Qwen2-Audio on a tiny random model, besides what `test_sound_families` compares with transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from llava_rig import our_logits
from qwen_audio_rig import NAME, PROMPTS, RATE, SECONDS, Model, sound
from safetensors.torch import load_file, save_file

from quire import LLM
from quire.errors import CheckpointError, TooLarge, Unprocessable
from quire.hooks import registry
from quire.media.audio import Audio
from quire.records import Registry
from quire.types import Prompt
from quire_models.loading import checkpoint
from quire_testing import check_input_mapper


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("qwen-audio"))


@pytest.fixture
def rig(model: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(model.folder, found, page_size=4) as made:
        yield made


# --- what is shared ----------------------------------------------------------------------------------


def ask(rig: Rig, prompt: Prompt) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were found."""
    request_id = rig.add(prompt, greedy(8, ignore_eos=True))
    answer = rig.drain()[request_id, 0]
    assert answer.last.error is None
    return answer.token_ids, answer.deltas[0].num_cached_tokens or 0


def test_the_same_audio_asked_twice_goes_through_the_tower_once_and_its_prefix_is_found(
    model: Model, found: Registry, rig: Rig
) -> None:
    first = model.prompt(found, rig.engine.info, "hear <|AUDIO|>: what is it?", sound(1, SECONDS))
    second = model.prompt(found, rig.engine.info, "hear <|AUDIO|>: and when?", sound(1, SECONDS))
    ask(rig, first)
    assert ask(rig, second)[1] >= 28  # "hear " and 25 rows, in whole pages
    elsewhere = model.prompt(found, rig.engine.info, "<|AUDIO|>", sound(1, SECONDS))
    assert ask(rig, elsewhere)[1] == 0
    stats = rig.engine.stats()
    assert (stats.num_media_encoded_total, stats.num_media_found_total) == (1, 1)


def test_two_sounds_of_equal_length_never_share_pages(model: Model, found: Registry, rig: Rig) -> None:
    prompts = [model.prompt(found, rig.engine.info, "hear <|AUDIO|>?", sound(seed, SECONDS)) for seed in (1, 2)]
    assert prompts[0].token_ids == prompts[1].token_ids
    answers = [ask(rig, prompt) for prompt in prompts]
    assert [cached for _, cached in answers] == [0, 4]  # the page before the audio
    assert answers[0][0] != answers[1][0]


# --- folders -----------------------------------------------------------------------------------------


def copied(model: Model, folder: Path) -> Path:
    for file in model.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


PUBLISHED = {
    "model.audio_tower.": "audio_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}


@pytest.mark.parametrize("published", [True, False], ids=["as published", "as modules are called"])
def test_checkpoints_of_all_times_load(model: Model, found: Registry, tmp_path: Path, published: bool) -> None:
    folder = copied(model, tmp_path)
    tensors = {}
    for name, tensor in model.reference.state_dict().items():
        prefix = next((prefix for prefix in PUBLISHED if published and name.startswith(prefix)), "")
        tensors[PUBLISHED.get(prefix, "") + name.removeprefix(prefix)] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    text, sounds = PROMPTS[4]
    with rig_of(folder, found) as rig:
        prompt = model.prompt(found, rig.engine.info, text, *sounds)
        ours = our_logits(rig.engine.loaded, prompt)
    torch.testing.assert_close(ours, model.logits(text, *sounds), atol=1e-4, rtol=0)


def test_a_checkpoint_that_lacks_another_bias_is_refused(model: Model, found: Registry, tmp_path: Path) -> None:
    folder = copied(model, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {
            name: tensor
            for name, tensor in tensors.items()
            if not name.endswith("audio_tower.layers.1.self_attn.q_proj.bias")
        },
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with (
        pytest.raises(CheckpointError, match=r"The checkpoint lacks \S*layers\.1\.\S*q_proj\.bias"),
        rig_of(folder, found),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text_config": {"model_type": "gpt2"}}, "language model is 'gpt2'; what can be built is qwen2"),
        (
            {"audio_config": {"model_type": "clip_vision_model"}},
            "encoder is 'clip_vision_model'; what can be built is",
        ),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(
    model: Model, found: Registry, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = copied(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=said), rig_of(folder, found):
        pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "has no feature extractor that can be used"),
        ({"chunk_length": 2}, "makes 200 frames of 16 numbers; the model takes 100 of 16"),
        ({"feature_size": 80}, "makes 100 frames of 80 numbers; the model takes 100 of 16"),
    ],
)
def test_an_extractor_that_does_not_fit_the_model_stops_the_start(
    model: Model, found: Registry, tmp_path: Path, change: dict[str, int] | None, said: str
) -> None:
    path = copied(model, tmp_path) / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    path.unlink()
    if change is not None:
        path.write_text(json.dumps({**settings, **change}))
    with rig_of(tmp_path, found) as rig:
        elsewhere = Model.__new__(Model)
        elsewhere.folder = tmp_path
        with pytest.raises(CheckpointError, match=said):
            elsewhere.prompt(found, rig.engine.info, "<|AUDIO|>", sound(1, 1))


# --- lengths -----------------------------------------------------------------------------------------


def test_the_mapper_gives_as_many_ids_as_the_tower_gives_rows(model: Model, found: Registry) -> None:
    (record,) = (mapper for mapper in found.all("quire_input_mappers") if mapper.architecture == NAME)
    architecture = found.by_hook("quire_architectures")[NAME]
    sounds = [sound(1, samples / RATE) for samples in (321, 480, 641, 1000, 7999, 15_681, 15_841, 15_999, 16_000)]
    check_input_mapper(
        record, architecture, checkpoint.read_config(model.folder), sounds, options={"cut": False}, folder=model.folder
    )


def test_audio_longer_than_the_model_hears_is_refused_or_cut_as_by_transformers(
    model: Model, found: Registry, rig: Rig
) -> None:
    text, long = "hear <|AUDIO|>.", sound(9, 1.5)
    with pytest.raises(TooLarge, match=r"The audio is 1\.5 seconds long; the model takes at most 1\."):
        model.prompt(found, rig.engine.info, text, long)
    cutting = registry.load(None, options={"qwen-audio": {"cut": True}})
    prompt = model.prompt(cutting, rig.engine.info, text, long)
    assert prompt.media[0].length == 25
    ours = our_logits(rig.engine.loaded, prompt)
    torch.testing.assert_close(ours, model.logits(text, long), atol=1e-4, rtol=0)


def test_audio_with_nothing_to_hear_is_refused(model: Model, found: Registry, rig: Rig) -> None:
    with pytest.raises(Unprocessable, match="The audio is too short"):
        model.prompt(found, rig.engine.info, "<|AUDIO|>", sound(1, 0.02))
    loud = Audio(samples=np.full(RATE, 1e30, np.float32), rate=RATE)
    with pytest.raises(Unprocessable, match="The audio is too loud"):
        model.prompt(found, rig.engine.info, "<|AUDIO|>", loud)
    silent = Audio(samples=np.zeros(RATE, np.float32), rate=RATE)
    assert model.prompt(found, rig.engine.info, "<|AUDIO|>", silent).media[0].length == 25


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}])
def test_the_library_answers(model: Model, settings: dict[str, str]) -> None:
    text = "<|AUDIO|> and <|AUDIO|>?"
    with LLM(str(model.folder), plugins=["qwen-audio"], num_pages=64, **{"dtype": "float32", **settings}) as llm:  # type: ignore[arg-type]
        prompts = [model.value(text, sound(seed, 0.4), sound(3, 0.6)) for seed in (1, 2)]
        outputs = llm.generate([*prompts, "text"], greedy(8, ignore_eos=True), use_tqdm=False)
    tokens = [output.outputs[0].token_ids for output in outputs]
    assert tokens[0] != tokens[1]
    if not settings:
        assert tokens[0] == model.greedy(text, sound(1, 0.4), sound(3, 0.6), count=8)
