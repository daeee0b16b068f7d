"""Encoder-decoders for text against transformers and peft, on tiny random models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, rig_of
from llava_adapted import uses
from text_pair_model import BEGIN, START, TEXTS, TextPairModel

from quire import LLM
from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Registry

BART_SIZES = {
    "vocab_size": 264,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 150,
    "decoder_start_token_id": START,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", r".*\.(q_proj|v_proj|out_proj|fc1)", BART_SIZES),
    "mbart": (
        "MBartForConditionalGeneration",
        r".*\.(q_proj|k_proj|out_proj|fc2)",
        {**BART_SIZES, "scale_embedding": True, "activation_function": "relu"},
    ),
}
T5_SIZES = {
    "d_ff": 96,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 40,
    "n_positions": 150,
    "decoder_start_token_id": START,
}
CASES |= {
    "t5": ("T5ForConditionalGeneration", r".*\.(q|v|o|wi|wo)", T5_SIZES),
    "umt5": ("UMT5ForConditionalGeneration", r".*\.(q|k|o|wi_0|wi_1|wo)", T5_SIZES),
}
SETTINGS = {"page_size": 16, "num_pages": 60}


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextPairModel:
    architecture, modules, config = CASES[request.param]
    return TextPairModel(tmp_path_factory.mktemp(request.param), architecture, modules, **config)


@pytest.fixture(scope="module")
def rig(model: TextPairModel, found: Registry) -> Iterator[Rig]:
    with rig_of(model.folder, found, max_num_batched_tokens=33, **SETTINGS) as made:
        made.engine.load_adapter("text", model.kit.folders["text"])
        yield made


def test_the_prompt_is_the_text_of_the_encoder(model: TextPairModel, found: Registry, rig: Rig) -> None:
    for value in (TEXTS[1], model.tokenizer.encode(TEXTS[1]), {"prompt": TEXTS[1]}):
        prompt = model.prompt(found, rig.engine.info, value)
        source = model.tokenizer.encode(TEXTS[1])
        assert list(prompt.token_ids[: len(source)]) == source
        assert prompt.token_ids[64:] == (START, BEGIN)
        assert prompt.media[0].length == len(source)
    given = {"prompt_token_ids": [START, 65], "multi_modal_data": {"encoder_prompt": TEXTS[2]}}
    prompt = model.prompt(found, rig.engine.info, given)
    assert prompt.token_ids[128:] == (START, 65)


def test_tokens_are_those_of_transformers_and_peft_in_mixed_batches(
    model: TextPairModel, found: Registry, rig: Rig
) -> None:
    asked = [(text, adapter) for text in TEXTS for adapter in ("", "text")]
    wanted = [model.greedy(text, adapter) for text, adapter in asked]
    assert len({tuple(tokens) for tokens in wanted}) > 3
    for _ in range(2):  # the second time pages are found
        ids = [
            rig.add(
                model.prompt(found, rig.engine.info, text), greedy(24, ignore_eos=True, logprobs=0), adapters=uses(name)
            )
            for text, name in asked
        ]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in ids] == wanted
    for request_id, (text, name) in zip(ids, asked, strict=True):
        if not name:
            found_logprobs = [entry.logprob for entry in answers[request_id, 0].logprobs]
            assert found_logprobs == pytest.approx(model.logprobs(text, answers[request_id, 0].token_ids), abs=1e-4)
    assert rig.engine.stats().num_cached_tokens_total > 0


@pytest.mark.parametrize("settings", [{"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}])
def test_preemption_short_steps_and_forks_change_nothing(
    model: TextPairModel, found: Registry, settings: dict[str, Any]
) -> None:
    wanted = [model.greedy(text) for text in TEXTS]
    with rig_of(model.folder, found, page_size=16, num_pages=14, max_num_batched_tokens=7, **settings) as rig:
        prompts = [model.prompt(found, rig.engine.info, text) for text in TEXTS]
        ids = [rig.add(prompt, greedy(24, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in ids] == wanted
        stats = rig.engine.stats()
        assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0
        drawn = rig.add(
            prompts[1], SamplingParams(n=2, temperature=1.0, seed=1, max_tokens=6, logprobs=0, ignore_eos=True)
        )
        answers = rig.drain()
    for index in range(2):
        fork = answers[drawn, index]
        assert [entry.logprob for entry in fork.logprobs] == pytest.approx(
            model.logprobs(TEXTS[1], fork.token_ids), abs=1e-4
        )


def test_texts_that_do_not_fit_are_refused(model: TextPairModel, found: Registry, rig: Rig) -> None:
    with pytest.raises(BadRequest, match="`prompt` has 151 tokens; the encoder of `tiny` reads at most 150"):
        model.prompt(found, rig.engine.info, [65] * 151)
    with pytest.raises(BadRequest, match="`prompt` must not be empty"):
        model.prompt(found, rig.engine.info, "")
    info = rig.engine.info
    assert info.max_model_len == 192 + 150
    request_id = rig.add(model.prompt(found, info, "a"), greedy(None, ignore_eos=True))
    assert len(rig.drain()[request_id, 0].token_ids) == 148  # the decoder has 150 positions however short the text is
    with pytest.raises(ConfigError, match="--page-size 128"), rig_of(model.folder, found, page_size=128):
        pass


def test_a_folder_without_a_first_token_of_the_decoder_is_refused(
    model: TextPairModel, found: Registry, rig: Rig, tmp_path: Path
) -> None:
    for file in model.folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    (tmp_path / "generation_config.json").write_text("{}")
    with rig_of(tmp_path, found, page_size=16) as rig, pytest.raises(CheckpointError, match="`decoder_start_token_id`"):
        model.prompt(found, rig.engine.info, "a")


def test_the_library_answers(model: TextPairModel) -> None:
    with LLM(str(model.folder), plugins=["bart", "t5"], num_pages=64, dtype="float32") as llm:
        outputs = llm.generate([TEXTS[1], TEXTS[2]], greedy(8, ignore_eos=True), use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == [
        model.greedy(text, count=8) for text in TEXTS[1:3]
    ]


@pytest.mark.parametrize("architecture", ["T5ForConditionalGeneration", "MT5ForConditionalGeneration"])
def test_later_forms_of_t5_have_gated_mlps_and_a_head_of_their_own(
    architecture: str, found: Registry, tmp_path: Path
) -> None:
    config = {**T5_SIZES, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    model = TextPairModel(tmp_path, architecture, r".*\.(q|wi_1)", **config)
    with rig_of(model.folder, found, **SETTINGS) as rig:
        ids = [rig.add(model.prompt(found, rig.engine.info, text), greedy(24, ignore_eos=True)) for text in TEXTS]
        answers = rig.drain()
    assert [answers[request_id, 0].token_ids for request_id in ids] == [model.greedy(text) for text in TEXTS]
