"""Gemma 3 with pictures against transformers, on tiny random models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from gemma3_rig import BEGIN, CASES, PROMPTS, SOFT, STOP, TOKENS, Model
from llava_rig import our_logits, picture
from PIL import Image

from quire import LLM, registry
from quire.errors import BadRequest, CheckpointError
from quire.records import Registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.testing import check_mapper
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt
from quire_models import checkpoint


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("gemma3"), **CASES[request.param])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture
def rig(narrow: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(narrow.folder, found, max_num_batched_tokens=40) as made:
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


@pytest.mark.parametrize(("max_tokens", "page_size"), [(16, 4), (17, 16), (33, 4), (600, 16)])
def test_greedy_tokens_are_those_of_transformers_in_one_batch_however_it_is_cut(
    model: Model, found: Registry, asked: list[tuple[Prompt, list[int]]], max_tokens: int, page_size: int
) -> None:
    """Pages of 16 are those that compiled ops take."""
    settings = {"max_num_batched_tokens": max_tokens, "page_size": page_size, "num_pages": 400}
    with rig_of(model.folder, found, **settings) as rig:
        for _ in range(2):  # the second time pages are found
            ids = [rig.add(prompt, greedy(32, ignore_eos=True)) for prompt, _ in asked]
            answers = rig.drain()
            assert [answers[request_id, 0].token_ids for request_id in ids] == [tokens for _, tokens in asked]
        assert rig.engine.stats().num_cached_tokens_total > 0


# --- what else a seq may go through -------------------------------------------------------------------


def seen(narrow: Model, found: Registry, rig: Rig, text: str = "see <start_of_image>, it is", seed: int = 1) -> Prompt:
    return narrow.prompt(found, rig.engine.info, text, picture(seed))


def test_a_prefix_that_is_found_may_end_inside_a_picture(narrow: Model, found: Registry, rig: Rig) -> None:
    first, second = (seen(narrow, found, rig, f"see it <start_of_image>{end}") for end in ("? A question", "! Another"))
    medium = first.media[0]
    for prompt, cached in ((first, 0), (second, 24)):
        request_id = rig.add(prompt, greedy(32, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
        assert answer.deltas[0].num_cached_tokens == cached
        assert answer.token_ids == narrow.greedy(prompt, picture(1))
    assert medium.start < 24 < medium.start + medium.length


@pytest.mark.parametrize("swap_space", [0.0, 0.01])
def test_answers_are_those_of_transformers_when_seqs_are_preempted(
    narrow: Model, found: Registry, swap_space: float
) -> None:
    with rig_of(narrow.folder, found, num_pages=40, max_num_batched_tokens=23, swap_space=swap_space) as rig:
        prompts = [seen(narrow, found, rig, f"{'so ' * i}<start_of_image> {i}", i % 3) for i in range(6)]
        ids = [rig.add(prompt, greedy(32, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
        for i, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
            assert answers[request_id, 0].token_ids == narrow.greedy(prompt, picture(i % 3))
        stats = rig.engine.stats()
        assert stats.num_preemptions_swap_total if swap_space else stats.num_preemptions_recompute_total


def ending_with_it(prompt: Prompt) -> Prompt:
    """The prompt as far as its picture goes, and no further."""
    medium = prompt.media[-1]
    return replace(prompt, token_ids=prompt.token_ids[: medium.start + medium.length])


@pytest.mark.parametrize("caching", [True, False])
def test_several_answers_are_the_same_as_one_also_where_a_picture_ends_the_prompt(
    narrow: Model, found: Registry, caching: bool
) -> None:
    with rig_of(narrow.folder, found, max_num_batched_tokens=23, enable_prefix_caching=caching) as rig:
        whole = seen(narrow, found, rig)
        for prompt in (whole, ending_with_it(whole)):
            nearly = SamplingParams(temperature=1e-5, seed=1, max_tokens=12, ignore_eos=True, n=3)
            request_id = rig.add(prompt, nearly)
            answers = rig.drain()
            expected = narrow.greedy(prompt, picture(1), max_new_tokens=12)
            assert [answers[request_id, i].token_ids for i in range(3)] == [expected] * 3


def test_beams_are_those_of_transformers(narrow: Model, found: Registry, rig: Rig) -> None:
    prompt = seen(narrow, found, rig)
    request_id = rig.add(prompt, BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True))
    answers = rig.drain()
    assert answers[request_id, 0].token_ids == narrow.greedy(prompt, picture(1), num_beams=3, max_new_tokens=12)


def test_logprobs_of_the_prompt_are_those_of_transformers(narrow: Model, found: Registry, rig: Rig) -> None:
    prompt = seen(narrow, found, rig)
    request_id = rig.add(prompt, greedy(4, ignore_eos=True, prompt_logprobs=0))
    scored = rig.drain()[request_id, 0].deltas[0].prompt_logprobs or ()
    theirs = narrow.logits(prompt, picture(1)).log_softmax(-1)[:-1]
    theirs = theirs.gather(1, torch.tensor(prompt.token_ids[1:])[:, None])[:, 0]
    ours = torch.tensor([entry.logprob for entry in scored[1:] if entry is not None])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_batch_invariant_engines_give_the_same_bits_in_any_company(narrow: Model, found: Registry) -> None:
    bits = []
    for settings in ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 17}):
        with rig_of(narrow.folder, found, dtype="bfloat16", batch_invariant=True, page_size=16, **settings) as rig:
            prompt = seen(narrow, found, rig, "some text in front of <start_of_image>, and behind")
            for company in (0, 3, 0):  # the last from the prefix cache
                for i in range(company):
                    rig.add(seen(narrow, found, rig, f"{i} <start_of_image>", i), greedy(9, ignore_eos=True))
                request_id = rig.add(prompt, greedy(9, ignore_eos=True, logprobs=2))
                answer = rig.drain()[request_id, 0]
                bits.append([(entry.token_id, entry.logprob) for entry in answer.logprobs])
            assert rig.engine.stats().num_cached_tokens_total > 0
    assert all(each == bits[0] for each in bits)


def test_pages_of_bytes_tell_nearly_the_same(narrow: Model, found: Registry) -> None:
    told = []
    for kind in ("auto", "int8"):
        settings = {"dtype": "bfloat16", "kv_cache_dtype": kind, "page_size": 16, "max_num_batched_tokens": 64}
        with rig_of(narrow.folder, found, **settings) as rig:
            request_id = rig.add(seen(narrow, found, rig), greedy(1, prompt_logprobs=0))
            scored = rig.drain()[request_id, 0].deltas[0].prompt_logprobs or ()
            told.append(torch.tensor([entry.logprob for entry in scored[1:] if entry is not None]))
    assert 0 < (told[0] - told[1]).abs().mean() < 0.1 * told[0].std()


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
    with pytest.raises(BadRequest, match="has text in it that stands for the inside of image"):
        narrow.prompt(found, rig.engine.info, "<image_soft_token> <start_of_image>", picture(1))
    with pytest.raises(BadRequest, match="has the marker '<start_of_image>' 1 times"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1), picture(2))


def test_the_mapper_gives_as_many_ids_as_the_tower_gives_rows(narrow: Model, found: Registry) -> None:
    (record,) = (m for m in found.all("quire_input_mappers") if m.architecture == "Gemma3ForConditionalGeneration")
    architecture, config = found.of("quire_architectures")[record.architecture], checkpoint.read_config(narrow.folder)
    pictures = [picture(seed, *size) for seed, size in enumerate([(1, 1), (1, 200), (90, 3), (57, 28)])]
    tokenizer = Tokenizer.load(narrow.folder)
    check_mapper(record, architecture, config, pictures, folder=narrow.folder, tokenizer=tokenizer)


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(narrow: Model, found: Registry) -> None:
    from quire_models import TowerCall

    with rig_of(narrow.folder, found) as rig:
        tower: Any = rig.engine.loaded.module.tower
        item, num_rows = tower.example()
        first, second = tower([item, item], TowerCall("cpu"))
    assert first.shape == second.shape == (num_rows, 64)


# --- what does not fit --------------------------------------------------------------------------------


def test_a_picture_larger_than_a_step_is_refused_and_text_is_not(narrow: Model, found: Registry) -> None:
    with rig_of(narrow.folder, found, max_num_batched_tokens=15) as rig:
        with pytest.raises(BadRequest, match=r"a medium of 16 tokens.* at most --max-num-batched-tokens \(15\) can be"):
            rig.add(seen(narrow, found, rig))
        assert rig.tokens([list(b"text that is longer than that")], greedy(3))


def changed(narrow: Model, folder: Path, name: str, **changes: Any) -> Path:
    shutil.copytree(narrow.folder, folder, dirs_exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mm_tokens_per_image": 9},
            "`mm_tokens_per_image` is 9, but the model sees 8 × 8 patches .* become 16 tokens",
        ),
        ({"vision_config": {"model_type": "dinov2"}}, "sees with 'dinov2'; what can be built is clip_vision_model"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(
    narrow: Model, found: Registry, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said), rig_of(changed(narrow, tmp_path, "config.json", **changes), found):
        pass


def test_a_processor_or_tokenizer_that_does_not_fit_the_model_is_refused(
    narrow: Model, found: Registry, tmp_path: Path
) -> None:
    other = changed(narrow, tmp_path / "a", "preprocessor_config.json", size={"height": 28, "width": 28})
    with rig_of(other, found) as rig, pytest.raises(CheckpointError, match="28 × 28 pixels; the model reads 56 × 56"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1))
    other = changed(narrow, tmp_path / "b", "config.json", image_token_index=265)
    with rig_of(other, found) as rig, pytest.raises(CheckpointError, match=r"must be the token 265, .* makes \[261\]"):
        narrow.prompt(found, rig.engine.info, "<start_of_image>", picture(1))


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}])
def test_the_library_answers(narrow: Model, settings: dict[str, str]) -> None:
    prompts = [{"prompt": "a <start_of_image>!", "multi_modal_data": {"image": picture(seed)}} for seed in (1, 2)]
    with LLM(str(narrow.folder), plugins=["gemma"], num_pages=64, **{"dtype": "float32", **settings}) as llm:
        outputs = llm.generate([*prompts, "text"], greedy(8, ignore_eos=True), use_tqdm=False)
    ids = outputs[0].prompt_token_ids
    assert ids == [*b"a ", 256, BEGIN, *[SOFT] * TOKENS, STOP, 256, *b"!"]
    assert outputs[0].outputs[0].token_ids != outputs[1].outputs[0].token_ids
    if not settings:
        made = narrow.greedy(Prompt(token_ids=tuple(ids)), picture(1), max_new_tokens=8)
        assert outputs[0].outputs[0].token_ids == made
