"""What requests of Whisper share, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, rig_of
from whisper_rig import (
    ENGLISH,
    IDS,
    LENGTH,
    RATE,
    ROOM,
    START,
    TEXT,
    Model,
    speech,
)

from quire import LLM
from quire.errors import BadRequest, CheckpointError, ConfigError, TooLarge
from quire.media.audio import Audio
from quire.params.pooling import PoolingParams
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire_models.loading import checkpoint
from quire_testing import check_input_mapper

# --- what is shared ----------------------------------------------------------------------------------


def test_the_same_speech_goes_through_the_tower_once_and_its_pages_are_found(
    small: Model, found: Registry, rig: Rig
) -> None:
    cached = []
    for text in (IDS, IDS, [START, ENGLISH, *b"other"]):
        request_id = rig.add(small.prompt(found, rig.engine.info, speech(7).copy(), text), greedy(4))
        cached.append(rig.drain()[request_id, 0].deltas[0].num_cached_tokens)
    assert cached == [0, ROOM, ROOM]
    assert rig.engine.stats().num_media_encoded_total == 1
    assert rig.engine.stats().num_encoder_cache_bytes == LENGTH * 64 * 4


def test_speech_of_equal_length_shares_nothing(small: Model, found: Registry, rig: Rig) -> None:
    prompts = [small.prompt(found, rig.engine.info, speech(seed), IDS) for seed in (1, 2)]
    assert prompts[0].token_ids == prompts[1].token_ids
    for prompt in prompts:
        request_id = rig.add(prompt, greedy(4))
        assert rig.drain()[request_id, 0].deltas[0].num_cached_tokens == 0
    assert rig.engine.stats().num_media_encoded_total == 2


# --- what is refused ---------------------------------------------------------------------------------


def test_a_prompt_needs_speech_and_text(small: Model, found: Registry, rig: Rig) -> None:
    info = rig.engine.info
    for sound, text, said in (
        ([], IDS, "The model `tiny` takes one audio with each prompt; this one has 0"),
        ([(speech(1), RATE)] * 2, IDS, "The model `tiny` takes one audio with each prompt; this one has 2"),
        (speech(1), "", "no text after the audio"),
        (speech(1, 2.1), IDS, r"2.1 seconds long; the model takes at most 2"),
    ):
        with pytest.raises((BadRequest, TooLarge), match=said):
            rig.add(small.prompt(found, info, sound, text))
    with pytest.raises(BadRequest, match=r"begins with one audio .* has text after it; this one has none"):
        rig.add([1, 2, 3])
    inputs = MultimodalProcessor(found, info, None)
    with pytest.raises(BadRequest, match="does not take image; it takes audio"):
        to_prompt({"prompt": "x", "multi_modal_data": {"image": b""}}, None, multimodal=inputs)
    with pytest.raises(BadRequest, match="maximum context length is 168"):
        rig.add(small.prompt(found, info, speech(1), [START] * (TEXT + 1)))
    assert not rig.engine.has_work


def test_what_a_source_has_no_part_in_is_refused(small: Model, found: Registry, rig: Rig) -> None:
    prompt = small.prompt(found, rig.engine.info, speech(1), IDS)
    with pytest.raises(BadRequest, match="This model does not support `prompt_logprobs`"):
        rig.add(prompt, greedy(4, prompt_logprobs=0))
    with pytest.raises(BadRequest, match="It can do: generate"):
        rig.add(prompt, PoolingParams(task="embed"))  # type: ignore[arg-type]
    assert rig.engine.info.tasks == ("generate", "transcribe", "translate")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"page_size": 48}, "--page-size 48: .* a medium of 128 positions, which must be a multiple of the page size"),
        (
            {"max_model_len": ROOM},
            "a medium of 128 positions, but its sequences are limited to 128: raise --max-model-len",
        ),
        ({"max_model_len": 169}, "--max-model-len may be at most 168"),
        ({"num_pages": 8}, "its sequences are limited to 128: .* or the limit of the KV cache"),
        ({"task": "embed"}, "--task embed: this model does not support it; it supports generate"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_leave_no_room_stop_the_start(
    small: Model, found: Registry, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), rig_of(small.folder, found, **settings):
        pass


def changed(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "has no feature extractor that can be used"),
        (
            lambda folder: changed(folder, "preprocessor_config.json", feature_size=8),
            "200 frames of 8 numbers; the model",
        ),
        (lambda folder: changed(folder, "preprocessor_config.json", chunk_length=3), "makes 300 frames of 16 numbers"),
    ],
)
def test_a_feature_extractor_that_does_not_fit_the_model_stops_the_start(
    found: Registry, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    model = Model(tmp_path)
    change(tmp_path)
    with rig_of(tmp_path, found) as rig, pytest.raises(CheckpointError, match=said):
        model.prompt(found, rig.engine.info, speech(1), IDS)


# --- from outside ------------------------------------------------------------------------------------


def test_the_mapper_gives_as_many_ids_as_the_tower_gives_rows(small: Model, found: Registry) -> None:
    (record,) = (mapper for mapper in found.all("quire_input_mappers") if mapper.name == "whisper/audio")
    sounds = [Audio(samples=speech(seed, seconds), rate=rate) for seed, seconds, rate in ((1, 2, RATE), (2, 0.5, 8000))]
    architecture = found.by_hook("quire_architectures")[record.architecture]
    check_input_mapper(record, architecture, checkpoint.read_config(small.folder), sounds, folder=small.folder)


def test_the_library_answers(small: Model) -> None:
    text = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    sounds = [(speech(1), RATE), (speech(2, 0.9), 8000)]
    prompts = [{"prompt": text, "multi_modal_data": {"audio": sound}} for sound in sounds]
    with LLM(str(small.folder), plugins=["whisper"], num_pages=64, dtype="float32") as llm:
        outputs = llm.generate(prompts, greedy(8, ignore_eos=True), use_tqdm=False)
    assert outputs[0].prompt_token_ids == [START] * ROOM + IDS
    assert outputs[0].outputs[0].token_ids == small.greedy(speech(1), IDS, 8)
    assert outputs[1].outputs[0].token_ids == small.greedy(
        Audio(samples=speech(2, 0.9), rate=8000).resample(RATE), IDS, 8
    )
