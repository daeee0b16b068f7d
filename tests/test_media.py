"""Media, from items in prompts to rows of embeddings, on a made-up modality: points, each a vector of three."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, make_rig, rig_of
from points_rig import PLACE, Points, cloud, points_folder, points_registry, prompt_of, run
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from quire import LLM
from quire.errors import BadRequest, CheckpointError, PluginError, PluginFailed
from quire.host.protocol import decode_to_host, encode, request_of, submit
from quire.records import Context, Mapped, Registry
from quire.sampling import SamplingParams
from quire.testing.tiny import tiny_llama
from quire.text.inputs import InputLimits, to_prompt
from quire.text.media import MediaInputs
from quire.text.tokenizer import Tokenizer
from quire.types import Media, Prompt, Request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return points_folder(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module")
def found() -> Registry:
    return points_registry()


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, nn.Linear]:
    tensors = load_file(folder / "model.safetensors")
    linear = nn.Linear(3, 64)
    linear.load_state_dict({name: tensors.pop(f"point_embed.{name}") for name in ("weight", "bias")})
    plain = tiny_llama(tmp_path_factory.mktemp("plain"))
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32).eval(), linear


@torch.inference_mode()
def expected(reference: tuple[LlamaForCausalLM, nn.Linear], prompt: Prompt, count: int) -> list[tuple[int, float]]:
    """Greedy tokens and their log-probabilities, computed the simplest way."""
    model, linear = reference
    embeds = model.get_input_embeddings()(torch.tensor([prompt.token_ids]))
    for item in prompt.media:
        embeds[0, item.start : item.start + item.length] = linear(item.tensors["points"])
    chosen = []
    for _ in range(count):
        logprobs = model(inputs_embeds=embeds).logits[0, -1].log_softmax(-1)
        token = int(logprobs.argmax())
        chosen.append((token, float(logprobs[token])))
        embeds = torch.cat([embeds, model.get_input_embeddings()(torch.tensor([[token]]))], 1)
    return chosen


@pytest.fixture(scope="module")
def inputs(folder: Path, found: Registry) -> Iterator[MediaInputs]:
    with rig_of(folder, found) as rig:
        yield MediaInputs(found, rig.engine.info, Tokenizer.load(folder))


@pytest.fixture(scope="module")
def prompts(inputs: MediaInputs, folder: Path) -> list[Prompt]:
    """Media at the begin, at the end, side by side, longer than a page, a chunk; and none."""
    texts: list[tuple[str, Sequence[Tensor]]] = [
        ("What is <points>? ", [cloud(1, 5)]),
        ("<points> and <points> differ", [cloud(2, 9), cloud(3, 30)]),
        ("<points><points>", [cloud(4, 3), cloud(5, 2)]),
        ("no points at all, but a text of some length", []),
        ("a b c d <points>", [cloud(6, 1)]),
    ]
    return [prompt_of(inputs, folder, text, *clouds) for text, clouds in texts]


# --- what the model computes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 3}, {"max_num_batched_tokens": 512, "page_size": 16}]
)
def test_logits_equal_those_of_inputs_embeds_however_the_prompt_is_cut(
    folder: Path, found: Registry, prompts: list[Prompt], reference: Any, settings: dict[str, int]
) -> None:
    with rig_of(folder, found, **settings) as rig:
        ids = [rig.add(prompt, greedy(6, ignore_eos=True, logprobs=0)) for prompt in prompts]
        answers = rig.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        answer, wanted = answers[request_id, 0], expected(reference, prompt, 6)
        assert answer.token_ids == [token for token, _ in wanted]
        assert [entry.logprob for entry in answer.logprobs] == pytest.approx([p for _, p in wanted], abs=1e-4)


def test_media_change_the_answer(folder: Path, found: Registry, inputs: MediaInputs) -> None:
    with rig_of(folder, found) as rig:
        first, second = run(rig, [prompt_of(inputs, folder, "<points>?", cloud(seed, 4)) for seed in (8, 9)])
    assert first != second


def test_an_answer_is_the_same_alone_in_a_batch_and_token_by_token(
    folder: Path, found: Registry, prompts: list[Prompt]
) -> None:
    with rig_of(folder, found, enable_prefix_caching=False) as rig:
        alone = [run(rig, [prompt])[0] for prompt in prompts]
        assert run(rig, prompts) == alone
        assert run(rig, [*prompts, *prompts[::-1]]) == alone + alone[::-1]
    with rig_of(folder, found, batch_invariant=True) as rig:
        assert run(rig, prompts) == alone


def test_a_medium_seen_before_is_found_in_the_cache_and_another_of_its_size_is_not(
    folder: Path, found: Registry, inputs: MediaInputs
) -> None:
    with rig_of(folder, found, max_num_batched_tokens=64) as rig:
        same = [prompt_of(inputs, folder, "<points> end", cloud(1, 14)) for _ in range(2)]
        other = prompt_of(inputs, folder, "<points> end", cloud(2, 14))
        assert same[0].token_ids == other.token_ids
        answers, cached, runs = [], [], []
        for prompt in (same[0], other, same[1]):
            Points.runs = 0
            request_id = rig.add(prompt, greedy(4))
            deltas = rig.drain()[request_id, 0].deltas
            answers.append([token for delta in deltas for token in delta.token_ids])
            cached.append(deltas[0].num_cached_tokens)
            runs.append(Points.runs)
    assert cached == [0, 0, 16]
    assert runs == [1, 1, 0]
    assert answers[0] == answers[2] != answers[1]


def test_a_cache_hit_that_ends_within_a_medium_computes_the_rest_of_it(
    folder: Path, found: Registry, inputs: MediaInputs, reference: Any
) -> None:
    prompt = prompt_of(inputs, folder, "<points>", cloud(3, 11))
    with rig_of(folder, found) as rig:
        run(rig, [prompt])
        request_id = rig.add(prompt, greedy(8, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
    assert answer.deltas[0].num_cached_tokens == 8
    assert answer.token_ids == [token for token, _ in expected(reference, prompt, 8)]


@pytest.mark.parametrize("settings", [{"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}])
def test_preemption_changes_nothing(
    folder: Path, found: Registry, prompts: list[Prompt], reference: Any, settings: dict[str, Any]
) -> None:
    with rig_of(folder, found, num_pages=17, enable_prefix_caching=False, max_num_batched_tokens=7, **settings) as rig:
        ids = [rig.add(prompt, greedy(12, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
        stats = rig.engine.stats()
        towers = rig.engine._runner._towers
        assert not towers._ahead
    assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert answers[request_id, 0].token_ids == [token for token, _ in expected(reference, prompt, 12)]


def test_forks_of_a_prompt_with_media_are_the_same_however_it_is_cut(
    folder: Path, found: Registry, prompts: list[Prompt]
) -> None:
    answers = []
    for settings in ({"max_num_batched_tokens": 5}, {"max_num_batched_tokens": 512, "num_pages": 24}):
        with rig_of(folder, found, **settings) as rig:
            params = SamplingParams(n=3, seed=5, temperature=1.0, max_tokens=9, ignore_eos=True)
            request_id = rig.add(prompts[4], params)  # whose last position is a medium's: each fork computes it
            found_now = rig.drain()
            answers.append([found_now[request_id, i].token_ids for i in range(3)])
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) > 1


# --- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (torch.full((6, 3), 13.0), r"'made': points that became 6 tokens needs rows of shape \[6, 64\].*\[1, 64\]"),
        (torch.full((6, 3), torch.nan), "'made' failed: ArithmeticError: a point lies nowhere"),
    ],
)
def test_a_tower_that_fails_fails_its_request_only_and_leaves_nothing_in_the_cache(
    folder: Path, found: Registry, inputs: MediaInputs, prompts: list[Prompt], points: Tensor, said: str
) -> None:
    bad = prompt_of(inputs, folder, "some text in front <points> and behind", points)
    with rig_of(folder, found, max_num_batched_tokens=9) as rig:
        (alone,) = run(rig, prompts[:1])
        broken = [rig.add(bad, greedy(8)) for _ in range(2)]
        fine = rig.add(prompts[0], greedy(8, ignore_eos=True))
        answers = rig.drain()
        assert answers[fine, 0].token_ids == alone
        for request_id in broken:
            kind, message = answers[request_id, 0].last.error or ("", "")
            assert kind == "PluginFailed"
            assert re.search(said, message)
        assert not rig.engine._runner._towers._ahead


def test_media_that_are_out_of_place_are_refused(folder: Path, found: Registry) -> None:
    def medium(start: int, length: int = 2, modality: str = "points") -> Media:
        return Media(modality=modality, start=start, length=length, digest="d", tensors={"points": cloud(1, length)})

    with rig_of(folder, found) as rig:
        for media in ([medium(3)], [medium(-1)], [medium(0), medium(1)], [medium(1), medium(-1)], [medium(0, 0)]):
            with pytest.raises(BadRequest, match="within the 4 tokens"):
                rig.add(Prompt(token_ids=(1, 2, 3, 4), media=tuple(media)))
        with pytest.raises(BadRequest, match="takes text and points, not image"):
            rig.add(Prompt(token_ids=(1, 2, 3), media=(medium(0, modality="image"),)))


def test_weights_of_the_tower_come_from_the_checkpoint_and_none_may_lack(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    del tensors["point_embed.bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 'point_embed\.bias'"), rig_of(tmp_path, points_registry()):
        pass


def test_a_mapper_for_an_architecture_without_a_tower_stops_the_start(folder: Path) -> None:
    with (
        pytest.raises(PluginError, match="'made' maps points for PointsForCausalLM, an architecture without a tower"),
        rig_of(folder, points_registry(tower=None)),
    ):
        pass


def test_a_tower_that_cannot_be_described_names_its_plugin(folder: Path) -> None:
    with (
        pytest.raises(PluginError, match="'made' could not make a tower"),
        rig_of(folder, points_registry(tower=lambda c: c.no_such_field)),
    ):
        pass


# --- from prompts to spans ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(folder: Path, found: Registry) -> Iterator[LLM]:
    with LLM.from_engine(make_rig(folder, found).engine, Tokenizer.load(folder), found) as made:
        yield made


def test_items_take_the_places_of_their_markers_in_order(inputs: MediaInputs, folder: Path) -> None:
    prompt = prompt_of(inputs, folder, "a<points>bc<points>", cloud(1, 2), cloud(2, 3))
    assert prompt.token_ids == (97, PLACE, PLACE, 98, 99, PLACE, PLACE, PLACE)
    assert [(item.start, item.length) for item in prompt.media] == [(1, 2), (5, 3)]
    assert torch.equal(prompt.media[1].tensors["points"], cloud(2, 3))
    assert prompt.text == "a<points>bc<points>"


def test_markers_are_found_among_token_ids_too(inputs: MediaInputs, folder: Path) -> None:
    text = prompt_of(inputs, folder, "a<points><points>b<p", cloud(1, 2), cloud(2, 3))
    value = {
        "prompt_token_ids": list(b"a<points><points>b<p"),
        "multi_modal_data": {"points": [cloud(1, 2), cloud(2, 3)]},
    }
    assert to_prompt(value, Tokenizer.load(folder), media_inputs=inputs).token_ids == text.token_ids


def test_a_marker_that_is_one_token_is_found_in_the_tokenized_text(folder: Path) -> None:
    found, tokenizer = points_registry(marker="<|user|>"), Tokenizer.load(folder)
    with rig_of(folder, found) as rig:
        inputs = MediaInputs(found, rig.engine.info, tokenizer)
        value = {"prompt": "x<|user|>y", "multi_modal_data": {"points": cloud(1, 2)}}
        assert to_prompt(value, tokenizer, media_inputs=inputs).token_ids == (120, PLACE, PLACE, 121)


def test_a_marker_that_is_one_token_needs_a_medium(folder: Path) -> None:
    found, tokenizer = points_registry(marker="<|user|>"), Tokenizer.load(folder)
    with rig_of(folder, found) as rig:
        inputs = MediaInputs(found, rig.engine.info, tokenizer)
    ids = tokenizer.encode("x<|user|>y<|user|>", add_special_tokens=False)
    for value in ("x<|user|>y<|user|>", ids, {"prompt": "x<|user|>y<|user|>", "multi_modal_data": {}}):
        with pytest.raises(BadRequest, match=r"'<\|user\|>' 2 times, but `multi_modal_data` has 0 items of points"):
            to_prompt(value, tokenizer, media_inputs=inputs)
    assert to_prompt("no marker", tokenizer, media_inputs=inputs).token_ids == tuple(b"no marker")


def test_equal_media_have_equal_digests_and_different_ones_never(inputs: MediaInputs, folder: Path) -> None:
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
            lambda: Mapped([], {}),
            lambda: Mapped([9999], {}),
            lambda: Mapped([1], {}, [[0, 1]]),
        ):
            with pytest.raises(PluginFailed, match="'made'"):
                llm.generate({"prompt": "<points>", "multi_modal_data": {"points": item}}, use_tqdm=False)


def test_a_mapper_that_cannot_be_built_stops_the_start(folder: Path) -> None:
    found = points_registry(build=lambda context: context.options["missing"])
    with rig_of(folder, found) as rig, pytest.raises(PluginError, match=r"'made/points' cannot be built.*KeyError"):
        MediaInputs(found, rig.engine.info, None)


def test_a_prompt_with_media_is_not_cut(inputs: MediaInputs, folder: Path) -> None:
    value = {"prompt": "abc<points>", "multi_modal_data": {"points": cloud(1, 9)}}
    limits = InputLimits(max_model_len=64, truncate_prompt_tokens=8)
    with pytest.raises(BadRequest, match="has 12 tokens and media in it, so it cannot be cut to 8"):
        to_prompt(value, Tokenizer.load(folder), limits, media_inputs=inputs)
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
    message = decode_to_host(encode(submit("tiny", request)))
    arrived = request_of(message).prompt  # type: ignore[arg-type]
    assert [(m.start, m.length, m.digest) for m in arrived.media] == [
        (m.start, m.length, m.digest) for m in prompts[1].media
    ]
    with rig_of(folder, found) as rig:
        assert run(rig, [arrived]) == run(rig, [prompts[1]])
