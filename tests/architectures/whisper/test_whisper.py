"""Whisper against transformers, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from whisper_rig import (
    ASKED,
    END,
    IDS,
    ROOM,
    VOCAB,
    Asked,
    Model,
    answers_of,
    asked_of,
    speech,
)

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry

# --- the oracle --------------------------------------------------------------------------------------


def test_logits_are_those_of_transformers(model: Model, found: Registry, asked: Asked) -> None:
    with rig_of(model.folder, found, num_pages=100) as rig:
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
    with rig_of(small.folder, found, **{"num_pages": 100, **settings}) as rig:
        assert answers_of(rig, asked) == [tokens for _, tokens in asked]


@pytest.mark.parametrize("way", ["recompute", "swap"])
def test_so_are_they_when_seqs_give_up_their_pages_and_come_back(small: Model, found: Registry, way: str) -> None:
    asked = asked_of(small, found)
    with rig_of(small.folder, found, num_pages=28, preemption=way, swap_space=1, max_num_batched_tokens=300) as rig:
        assert answers_of(rig, asked) == [tokens for _, tokens in asked]
        stats = rig.engine.stats()
    counts = {"recompute": stats.num_preemptions_recompute_total, "swap": stats.num_preemptions_swap_total}
    assert [name for name, count in counts.items() if count] == [way]


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.2), ("int4", 0.5)])
def test_quantized_keys_and_values_leave_logits_nearly_as_they_are(
    tmp_path: Path, found: Registry, kind: str, share: float
) -> None:
    reports, wide = [], Model(tmp_path, decoder_attention_heads=2)
    for each in ("auto", kind):
        with rig_of(wide.folder, found, kv_cache_dtype=each) as rig:
            prompt = wide.prompt(found, rig.engine.info, speech(1), IDS)
            request_id = rig.add(prompt, greedy(1, logprobs=-1))
            reports.append(dict(rig.drain()[request_id, 0].logprobs[0].top))
    near, exact = (torch.tensor([report[token] for token in range(VOCAB)]) for report in (reports[1], reports[0]))
    assert 0 < float((near - exact).abs().max()) < share * float(exact.std())


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
