"""Which tokens Whisper may say when; transformers' logits processors are the oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from whisper_rig import END, ENGLISH, FIRST_TIME, NEVER, NO_TIMES, NOT_FIRST, START, TRANSCRIBE, VOCAB, Model, speech

from quire.engine.processors.logits_processors import ProcessorState
from quire.errors import BadRequest
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Context
from quire_plugins.audio.whisper_rules import WhisperLogitsProcessor
from quire_testing import tiny_llama

IDS = [START, ENGLISH, TRANSCRIBE]
TIMES = {"return_timestamps": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"), rules=True)


@pytest.fixture
def rig(model: Model) -> Iterator[Rig]:
    with rig_of(model.folder, registry.load(None), num_pages=50) as made:
        yield made


def processors(model: Model, begin: int, times: bool) -> list[Any]:
    """Those of transformers, in the order in which it applies them."""
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    made = [SuppressTokensAtBeginLogitsProcessor(NOT_FIRST, begin), SuppressTokensLogitsProcessor(NEVER)]
    return [*made, WhisperTimeStampLogitsProcessor(model.reference.generation_config, begin)] if times else made


def rules_of(model: Model) -> WhisperLogitsProcessor:
    config = json.loads((model.folder / "config.json").read_text())
    return WhisperLogitsProcessor(
        Context(config=config, folder=str(model.folder), vocab_size=VOCAB), config["architectures"][0]
    )


def histories() -> list[list[int]]:
    """None, text alone, and timestamps where they may stand and where they may not."""
    rng = random.Random(0)
    first, last = FIRST_TIME, VOCAB - 1
    one = [[], [7], [first], [last]]
    more = [[first, 7], [7, last], [first + 9, 7, first + 12], [first, 7, first + 5, first + 5]]
    drawn = [[rng.choice((7, 8, rng.randrange(first, VOCAB))) for _ in range(rng.randrange(1, 9))] for _ in range(60)]
    return one + more + drawn


@pytest.mark.parametrize("times", [False, True])
def test_the_rules_are_those_of_transformers(model: Model, times: bool) -> None:
    rules = rules_of(model)
    state = rules.start(SamplingParams(extra=TIMES if times else {}))
    said = histories()
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(said), VOCAB, generator=generator)
    logits[::3, FIRST_TIME:] += 4  # so that timestamps win against text in some
    expected = []
    for row, ids in zip(logits, said, strict=True):
        so_far, scores = torch.tensor([IDS + ids]), row[None].clone()
        for process in processors(model, len(IDS), times):
            scores = process(so_far, scores)
        expected.append(scores[0])
    rules.apply(logits, [ProcessorState("whisper", state, ids) for ids in said])
    assert torch.equal(logits, torch.stack(expected))
    texts = logits[:, :FIRST_TIME].isinf().all(1)
    assert bool(texts.any()) == times
    assert not texts.all()


def test_timestamps_may_be_forbidden(model: Model) -> None:
    rules = rules_of(model)
    lists: dict[str, list[int]] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    state = rules.start(SamplingParams(extra={"return_timestamps": False, **lists}))
    logits = torch.zeros(2, VOCAB)
    rules.apply(logits, [ProcessorState("whisper", state, []), ProcessorState("whisper", state, [7, FIRST_TIME])])
    assert logits.isinf().nonzero()[:, 1].tolist() == [*range(FIRST_TIME, VOCAB)] * 2


def test_who_says_what_is_allowed_need_not_mind_what_is_usually_forbidden(model: Model, rig: Rig) -> None:
    prompt = model.prompt(registry.load(None), rig.engine.info, speech(1), [START])
    assert START in NEVER
    assert rig.tokens([prompt], greedy(1, allowed_token_ids=[START])) == [[START]]


def test_answers_are_those_of_transformers_with_its_rules(model: Model, rig: Rig) -> None:
    asked = [(seed, extra) for seed in range(1, 5) for extra in (TIMES, {})]
    prompts = [
        model.prompt(registry.load(None), rig.engine.info, speech(seed), [*IDS, *([] if extra else [NO_TIMES])])
        for seed, extra in asked
    ]
    ids = [
        rig.add(prompt, greedy(24, ignore_eos=True, extra=extra))
        for prompt, (_, extra) in zip(prompts, asked, strict=True)
    ]
    answers = rig.drain()
    for request_id, prompt, (seed, extra) in zip(ids, prompts, asked, strict=True):
        begin = prompt.token_ids[128:]
        oracle = model.greedy(speech(seed), begin, 24, processors=processors(model, len(begin), bool(extra)))
        assert answers[request_id, 0].token_ids == oracle
        assert (oracle[0] >= FIRST_TIME) == bool(extra)


def test_a_request_may_bring_lists_of_its_own(model: Model, rig: Rig) -> None:
    prompt = model.prompt(registry.load(None), rig.engine.info, speech(1), [*IDS, NO_TIMES])
    free = {"suppress_tokens": [], "begin_suppress_tokens": []}
    (first,) = rig.tokens([prompt], greedy(1, extra=free))[0]
    assert first == model.greedy(speech(1), [*IDS, NO_TIMES], 1)[0]
    for name in free:
        (other,) = rig.tokens([prompt], greedy(1, extra={**free, name: [first]}))[0]
        assert other != first
        for wrong in ([-1], [True], ["a"]):
            request_id = rig.add(prompt, greedy(1, extra={name: wrong}))
            assert f"`{name}` must be a list of token ids" in (rig.drain()[request_id, 0].last.error or ("", ""))[1]


def test_ids_beyond_the_vocabulary_forbid_nothing(model: Model) -> None:
    rules = rules_of(model)
    uses = rules.start(SamplingParams(extra={"suppress_tokens": [3, VOCAB], "begin_suppress_tokens": [VOCAB + 9]}))
    assert uses is not None
    assert (uses.never.tolist(), uses.not_first.tolist(), uses.times) == ([3], [], None)
    assert rules.start(SamplingParams(extra={"suppress_tokens": [], "begin_suppress_tokens": []})) is None


def test_models_that_cannot_honour_the_fields_say_so(model: Model, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((model.folder / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}))
    config = json.loads((tmp_path / "config.json").read_text())
    silent = WhisperLogitsProcessor(
        Context(config=config, folder=str(tmp_path), vocab_size=VOCAB), config["architectures"][0]
    )
    assert silent.start(SamplingParams()) is None
    with pytest.raises(BadRequest, match="it is not known which tokens are timestamps"):
        silent.start(SamplingParams(extra=TIMES))
    with rig_of(tiny_llama(tmp_path / "llama")) as rig:
        request_id = rig.add([1, 2], greedy(2, extra=TIMES))
        error = rig.drain()[request_id, 0].last.error
        assert "`return_timestamps` is for models that write down speech" in (error or ("", ""))[1]
        assert len(rig.tokens([[1, 2]], greedy(2, ignore_eos=True))[0]) == 2
