"""Markers and media items in prompts become spans of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, make_rig, rig_of
from points_rig import PLACE, cloud, expected, points_registry, prompt_of, run
from torch import Tensor

from quire import LLM
from quire.engine_process.wire.protocol import Submit, decode_to_engine, encode
from quire.errors import BadRequest, PluginError, PluginFailed
from quire.records import Context, MappedMedia, Registry
from quire.text.inputs.inputs import InputLimits, to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt, Request

# --- from prompts to spans ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(folder: Path, found: Registry) -> Iterator[LLM]:
    with LLM.from_engine(make_rig(folder, found).engine, Tokenizer.load(folder), found) as made:
        yield made


def test_items_take_the_places_of_their_markers_in_order(inputs: MultimodalProcessor, folder: Path) -> None:
    prompt = prompt_of(inputs, folder, "a<points>bc<points>", cloud(1, 2), cloud(2, 3))
    assert prompt.token_ids == (97, PLACE, PLACE, 98, 99, PLACE, PLACE, PLACE)
    assert [(item.start, item.length) for item in prompt.media] == [(1, 2), (5, 3)]
    assert torch.equal(prompt.media[1].tensors["points"], cloud(2, 3))
    assert prompt.text == "a<points>bc<points>"


def test_markers_are_found_among_token_ids_too(inputs: MultimodalProcessor, folder: Path) -> None:
    text = prompt_of(inputs, folder, "a<points><points>b<p", cloud(1, 2), cloud(2, 3))
    value = {
        "prompt_token_ids": list(b"a<points><points>b<p"),
        "multi_modal_data": {"points": [cloud(1, 2), cloud(2, 3)]},
    }
    assert to_prompt(value, Tokenizer.load(folder), multimodal=inputs).token_ids == text.token_ids


def test_a_marker_that_is_one_token_is_found_in_the_tokenized_text(folder: Path) -> None:
    found, tokenizer = points_registry(marker="<|user|>"), Tokenizer.load(folder)
    with rig_of(folder, found) as rig:
        inputs = MultimodalProcessor(found, rig.engine.info, tokenizer)
        value = {"prompt": "x<|user|>y", "multi_modal_data": {"points": cloud(1, 2)}}
        assert to_prompt(value, tokenizer, multimodal=inputs).token_ids == (120, PLACE, PLACE, 121)


def test_a_marker_that_is_one_token_needs_a_medium(folder: Path) -> None:
    found, tokenizer = points_registry(marker="<|user|>"), Tokenizer.load(folder)
    with rig_of(folder, found) as rig:
        inputs = MultimodalProcessor(found, rig.engine.info, tokenizer)
    ids = tokenizer.encode("x<|user|>y<|user|>", add_special_tokens=False)
    for value in ("x<|user|>y<|user|>", ids, {"prompt": "x<|user|>y<|user|>", "multi_modal_data": {}}):
        with pytest.raises(BadRequest, match=r"'<\|user\|>' 2 times, but `multi_modal_data` has 0 items of points"):
            to_prompt(value, tokenizer, multimodal=inputs)
    assert to_prompt("no marker", tokenizer, multimodal=inputs).token_ids == tuple(b"no marker")


def test_equal_media_have_equal_digests_and_different_ones_never(inputs: MultimodalProcessor, folder: Path) -> None:
    def digest(points: Tensor) -> str:
        return prompt_of(inputs, folder, "<points>", points).media[0].digest

    one = cloud(1, 4)
    assert digest(one) == digest(one.clone()) == digest(one.T.contiguous().T)
    different = [one, cloud(2, 4), one.double(), one.half(), one[:3], torch.zeros(2, 3), torch.zeros(3, 3)]
    assert len({digest(points) for points in different}) == len(different)


def test_a_text_without_media_keeps_what_looks_like_a_marker(llm: LLM) -> None:
    for value in ("<points>", {"prompt": "<points>"}, {"prompt": "<points>", "multi_modal_data": {"points": []}}):
        (output,) = llm.generate(value, greedy(1), use_tqdm=False)
        assert output.prompt_token_ids == list(b"<points>")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"prompt": "<points>", "multi_modal_data": {"points": [cloud(1, 2)] * 2}},
            "'<points>' 1 times, .* has 2 items",
        ),
        ({"prompt": "<points> <points>", "multi_modal_data": {"points": cloud(1, 2)}}, "2 times, .* has 1 items"),
        ({"prompt": "x", "multi_modal_data": {"points": cloud(1, 2)}}, "0 times, .* has 1 items"),
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, "does not take image; it takes points"),
        ({"prompt": "x", "multi_modal_data": [1]}, "must map modalities to items, got list"),
        ({"prompt": "<points>", "multi_modal_data": {"points": cloud(1, 2).T}}, "Points have 3 numbers"),
        ({"prompt": "<points>", "multi_modal_data": {"points": cloud(1, 600)}}, "maximum context length is 512"),
        ({"multi_modal_data": {"points": cloud(1, 2)}}, "got nothing"),
    ],
)
def test_media_that_do_not_fit_their_prompt_are_refused(llm: LLM, value: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        llm.generate(value, greedy(1), use_tqdm=False)


def test_a_mapper_that_fails_or_gives_nonsense_is_named(folder: Path) -> None:
    class Broken:
        def __init__(self, context: Context) -> None:
            pass

        def map(self, item: Any) -> Any:
            return item()

    found = points_registry(build=Broken)
    with LLM.from_engine(make_rig(folder, found).engine, Tokenizer.load(folder), found) as llm:
        for item in (
            lambda: 1 / 0,
            lambda: None,
            lambda: MappedMedia([], {}),
            lambda: MappedMedia([9999], {}),
            lambda: MappedMedia([1], {}, [[0, 1]]),
        ):
            with pytest.raises(PluginFailed, match="'made'"):
                llm.generate({"prompt": "<points>", "multi_modal_data": {"points": item}}, use_tqdm=False)


def test_a_mapper_that_cannot_be_built_stops_the_start(folder: Path) -> None:
    found = points_registry(build=lambda context: context.options["missing"])
    with rig_of(folder, found) as rig, pytest.raises(PluginError, match=r"'made/points' cannot be built.*KeyError"):
        MultimodalProcessor(found, rig.engine.info, None)


def test_a_prompt_with_media_is_not_cut(inputs: MultimodalProcessor, folder: Path) -> None:
    value = {"prompt": "abc<points>", "multi_modal_data": {"points": cloud(1, 9)}}
    limits = InputLimits(max_model_len=64, truncate_prompt_tokens=8)
    with pytest.raises(BadRequest, match="has 12 tokens and contains media, so it cannot be cut to 8"):
        to_prompt(value, Tokenizer.load(folder), limits, multimodal=inputs)
    with pytest.raises(BadRequest, match="takes text only"):
        to_prompt(value, Tokenizer.load(folder))


def test_the_library_answers_prompts_with_media(llm: LLM, prompts: list[Prompt], reference: Any) -> None:
    value = {"prompt": "What is <points>? ", "multi_modal_data": {"points": cloud(1, 5)}}
    first, second = llm.generate([value, "no points"], greedy(5, ignore_eos=True), use_tqdm=False)
    assert first.outputs[0].token_ids == [token for token, _ in expected(reference, prompts[0], 5)]
    assert len(second.outputs[0].token_ids) == 5


def test_media_travel_to_the_host_and_give_the_same_answer(
    folder: Path, found: Registry, prompts: list[Prompt]
) -> None:
    request = Request(id="r", prompt=prompts[1], params=greedy(8, ignore_eos=True))
    message = decode_to_engine(encode(Submit.from_request("tiny", request)))
    arrived = message.to_request().prompt  # type: ignore[union-attr]
    assert [(m.start, m.length, m.digest) for m in arrived.media] == [
        (m.start, m.length, m.digest) for m in prompts[1].media
    ]
    with rig_of(folder, found) as rig:
        assert run(rig, [arrived]) == run(rig, [prompts[1]])
