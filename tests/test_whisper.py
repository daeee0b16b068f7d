"""Whisper against transformers, on tiny random models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from whisper_rig import (
    ASKED,
    CASES,
    END,
    ENGLISH,
    LENGTH,
    NO_TIMES,
    RATE,
    ROOM,
    START,
    TEXT,
    TRANSCRIBE,
    VOCAB,
    Model,
    speech,
)

from quire import LLM, registry
from quire.errors import BadRequest, CheckpointError, ConfigError, TooLarge
from quire.media.audio import Audio
from quire.pooling import PoolingParams
from quire.records import Registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.testing import check_mapper
from quire.text.inputs import to_prompt
from quire.text.media import MediaInputs
from quire.types import Prompt
from quire_models import checkpoint

IDS = [START, ENGLISH, TRANSCRIBE, NO_TIMES]


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"), **CASES[request.param])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def rig(small: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(small.folder, found, num_pages=600) as made:
        yield made


Asked = list[tuple[Prompt, list[int]]]


def asked_of(model: Model, found: Registry) -> Asked:
    """Prompts, and the 32 tokens that transformers gives after each."""
    asked = []
    with rig_of(model.folder, found) as rig:
        for sound, text in ASKED:
            prompt = model.prompt(found, rig.engine.info, sound, text)
            asked.append((prompt, model.greedy(sound, prompt.token_ids[ROOM:])))
    assert len({tuple(tokens) for _, tokens in asked}) == len(asked)
    return asked


@pytest.fixture(scope="module")
def asked(model: Model, found: Registry) -> Asked:
    return asked_of(model, found)


def answers_of(rig: Rig, asked: Asked, params: SamplingParams | None = None) -> list[list[int]]:
    ids = [rig.add(prompt, params or greedy(32, ignore_eos=True)) for prompt, _ in asked]
    answers = rig.drain()
    assert [answers[request_id, 0].last.error for request_id in ids] == [None] * len(ids)
    return [answers[request_id, 0].token_ids for request_id in ids]


# --- the oracle --------------------------------------------------------------------------------------


def test_logits_are_those_of_transformers(model: Model, found: Registry, asked: Asked) -> None:
    with rig_of(model.folder, found, num_pages=400) as rig:
        ids = [rig.add(prompt, greedy(6, ignore_eos=True, logprobs=-1)) for prompt, _ in asked]
        answers = rig.drain()
    for request_id, (prompt, tokens), (sound, _) in zip(ids, asked, ASKED, strict=True):
        begin = prompt.token_ids[ROOM:]
        expected = model.logits(sound, [*begin, *tokens[:5]])[len(begin) - 1 :].log_softmax(-1)
        ours = torch.empty(6, VOCAB)
        for i, entry in enumerate(answers[request_id, 0].logprobs):
            ours[i, [token for token, _ in entry.top]] = torch.tensor([logprob for _, logprob in entry.top])
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("max_tokens", "page_size"), [(7, 4), (33, 16), (1000, 4), (1000, 16)])
def test_greedy_tokens_are_those_of_transformers_in_one_batch_however_it_is_cut(
    model: Model, found: Registry, asked: Asked, max_tokens: int, page_size: int
) -> None:
    sizes = {"max_num_batched_tokens": max_tokens, "page_size": page_size, "num_pages": 1600 // page_size}
    with rig_of(model.folder, found, **sizes) as rig:
        for _ in range(2):  # the second time pages are found
            assert answers_of(rig, asked) == [tokens for _, tokens in asked]
        assert rig.engine.stats().num_cached_tokens_total > len(asked) * ROOM // 2


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 200},
        {"page_size": 64, "num_pages": 40},
        {"enable_prefix_caching": False, "encoder_cache_bytes": 0},
        {"batch_invariant": True, "max_num_batched_tokens": 50},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_so_are_they_with_other_settings(small: Model, found: Registry, settings: dict[str, Any]) -> None:
    asked = asked_of(small, found)
    with rig_of(small.folder, found, **{"num_pages": 400, **settings}) as rig:
        assert answers_of(rig, asked) == [tokens for _, tokens in asked]


@pytest.mark.parametrize("way", ["recompute", "swap"])
def test_so_are_they_when_seqs_give_up_their_pages_and_come_back(small: Model, found: Registry, way: str) -> None:
    asked = asked_of(small, found)
    with rig_of(small.folder, found, num_pages=110, preemption=way, swap_space=1, max_num_batched_tokens=300) as rig:
        assert answers_of(rig, asked) == [tokens for _, tokens in asked]
        stats = rig.engine.stats()
    counts = {"recompute": stats.num_preemptions_recompute_total, "swap": stats.num_preemptions_swap_total}
    assert [name for name, count in counts.items() if count] == [way]


def test_keys_and_values_in_bytes_leave_logits_nearly_as_they_are(small: Model, found: Registry) -> None:
    reports = []
    for kind in ("auto", "int8"):
        with rig_of(small.folder, found, kv_cache_dtype=kind) as rig:
            prompt = small.prompt(found, rig.engine.info, speech(1), IDS)
            request_id = rig.add(prompt, greedy(1, logprobs=-1))
            reports.append(dict(rig.drain()[request_id, 0].logprobs[0].top))
    near, exact = (torch.tensor([report[token] for token in range(VOCAB)]) for report in (reports[1], reports[0]))
    assert 0 < float((near - exact).abs().max()) < 0.2 * float(exact.std())


def test_beams_are_those_of_transformers(small: Model, found: Registry, rig: Rig) -> None:
    from transformers.generation import GenerationMixin

    for sound, text in ASKED[:3]:
        prompt = small.prompt(found, rig.engine.info, sound, text)
        begin = torch.tensor([prompt.token_ids[ROOM:]])
        ids = GenerationMixin.generate(
            small.reference,
            input_features=small.features(sound),
            decoder_input_ids=begin,
            num_beams=3,
            num_return_sequences=3,
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=END,
        )
        request_id = rig.add(prompt, BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True))
        answers = rig.drain()
        assert [answers[request_id, i].token_ids for i in range(3)] == ids[:, begin.shape[1] :].tolist()


def test_what_is_drawn_depends_on_the_seed_alone(small: Model, found: Registry, rig: Rig) -> None:
    prompts = [small.prompt(found, rig.engine.info, sound, text) for sound, text in ASKED]
    params = SamplingParams(n=3, seed=5, temperature=1.5, max_tokens=12, ignore_eos=True)
    together = [rig.add(prompt, params) for prompt in prompts]
    answers = rig.drain()
    for prompt, request_id in zip(prompts, together, strict=True):
        with rig_of(small.folder, found, max_num_batched_tokens=64) as alone:
            again = alone.add(prompt, params)
            drawn = alone.drain()
            texts = [drawn[again, i].token_ids for i in range(3)]
            assert alone.engine.stats().num_media_encoded_total == 1
        assert texts == [answers[request_id, i].token_ids for i in range(3)]
        assert len(set(map(tuple, texts))) == 3


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
        (speech(1, 2.1), IDS, r"2.1 seconds long; the model hears at most 2"),
    ):
        with pytest.raises((BadRequest, TooLarge), match=said):
            rig.add(small.prompt(found, info, sound, text))
    with pytest.raises(BadRequest, match=r"begins with one audio .* has text after it; this one has none"):
        rig.add([1, 2, 3])
    inputs = MediaInputs(found, info, None)
    with pytest.raises(BadRequest, match="does not take image; it takes audio"):
        to_prompt({"prompt": "x", "multi_modal_data": {"image": b""}}, None, media_inputs=inputs)
    with pytest.raises(BadRequest, match="maximum context length is 168"):
        rig.add(small.prompt(found, info, speech(1), [START] * (TEXT + 1)))
    assert not rig.engine.has_work


def test_what_a_source_has_no_part_in_is_refused(small: Model, found: Registry, rig: Rig) -> None:
    prompt = small.prompt(found, rig.engine.info, speech(1), IDS)
    with pytest.raises(BadRequest, match="`prompt_logprobs` cannot be had of this model"):
        rig.add(prompt, greedy(4, prompt_logprobs=0))
    with pytest.raises(BadRequest, match="It can do: generate"):
        rig.add(prompt, PoolingParams(task="embed"))  # type: ignore[arg-type]
    assert rig.engine.info.tasks == ("generate", "transcribe", "translate")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"page_size": 48}, "--page-size 48: .* a medium of 128 positions, which the size of pages must divide"),
        ({"max_model_len": ROOM}, "a medium of 128 positions, but its seqs are bounded to 128: raise --max-model-len"),
        ({"max_model_len": 169}, "--max-model-len may be at most 168"),
        ({"num_pages": 32}, "its seqs are bounded to 128: .* or what bounds the KV cache"),
        ({"task": "embed"}, "--task embed: this model cannot do it; it can do generate"),
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
    architecture = found.of("quire_architectures")[record.architecture]
    check_mapper(record, architecture, checkpoint.read_config(small.folder), sounds, folder=small.folder)


def test_the_library_answers(small: Model) -> None:
    text = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    sounds = [(speech(1), RATE), (speech(2, 0.9), 8000)]
    prompts = [{"prompt": text, "multi_modal_data": {"audio": sound}} for sound in sounds]
    with LLM(str(small.folder), plugins=["whisper"], num_pages=64, dtype="float32") as llm:
        outputs = llm.generate(prompts, greedy(8, ignore_eos=True), use_tqdm=False)
    assert outputs[0].prompt_token_ids == [START] * ROOM + IDS
    assert outputs[0].outputs[0].token_ids == small.greedy(speech(1), IDS, 8)
    assert outputs[1].outputs[0].token_ids == small.greedy(Audio(samples=speech(2, 0.9), rate=8000).at(RATE), IDS, 8)
