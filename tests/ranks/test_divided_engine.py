"""Engines on several ranks and in stages answer as one on a single rank does, with every feature of requests."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, random_ids, related_prompts
from family_checks import plugins
from ia3_rig import CASES as IA3_CASES, World as Ia3World
from parity_model import total_preemptions
from pooling_rig import pooled
from rank_rig import DIVIDED_GROUPS, TWO_RANKS, TWO_STAGES, WAYS, on_one_and_several
from virtual_tokens_rig import World as VirtualTokensWorld, using

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import byte_tokenizer, reference_model, save

REQUESTS: dict[str, SamplingParams | BeamSearchParams] = {
    "greedy": greedy(12, ignore_eos=True),
    "seeded": SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, top_p=0.9, top_k=40),
    "several": SamplingParams(temperature=1.0, seed=4, max_tokens=8, n=3, ignore_eos=True),
    "penalties and logprobs": SamplingParams(
        temperature=0.7, seed=5, max_tokens=12, ignore_eos=True, logprobs=3, presence_penalty=1.0, min_p=0.01
    ),
    "scored prompt": greedy(4, ignore_eos=True, prompt_logprobs=2),
    "beams": BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True),
    "constrained": greedy(8, structured=StructuredSpec(kind="regex", source="[a-f]{3}-[0-9]{3}")),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save(reference_model("LlamaForCausalLM", **DIVIDED_GROUPS), folder)
    return byte_tokenizer(folder)


def everything(rig: Rig) -> dict[str, Any]:
    """Tokens, and numbers of logprobs, of all requests in one batch, by request and index."""
    prompts = related_prompts(len(REQUESTS))
    ids = {rig.add(prompt, params): name for prompt, (name, params) in zip(prompts, REQUESTS.items(), strict=True)}
    found: dict[str, Any] = {}
    for (request_id, index), answer in rig.drain().items():
        assert answer.last.error is None, answer.last.error
        scored = answer.deltas[0].prompt_logprobs or ()
        tops = [[token for token, _ in each.top] for each in (*answer.logprobs, *scored) if each is not None]
        found[f"{ids[request_id]} {index}"] = (answer.token_ids, tops)
    return found


divided = pytest.mark.parametrize("ranks", WAYS.values(), ids=WAYS)


@pytest.mark.parametrize(
    "ranks",
    [TWO_RANKS, {"tensor_parallel_size": 3}, TWO_STAGES, {**TWO_RANKS, **TWO_STAGES}],
    ids=["two ranks", "three ranks", "two stages", "two stages of two ranks"],
)
def test_every_kind_of_request_has_the_same_answer(llama: Path, ranks: dict[str, int]) -> None:
    one, several = on_one_and_several(llama, plugins(), everything, ranks)
    assert several == one
    assert len({str(tokens) for tokens, _ in one.values()}) == len(one)


@divided
@pytest.mark.parametrize("way", [{"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}])
def test_preempted_sequences_go_on(llama: Path, way: dict[str, Any], ranks: dict[str, int]) -> None:
    prompts = [random_ids(Random(i), 25) for i in range(4)]

    def answers(rig: Rig) -> tuple[list[list[int]], int]:
        found = rig.tokens(prompts, greedy(24, ignore_eos=True))
        return found, sum(total_preemptions(rig))

    one, two = on_one_and_several(llama, plugins(), answers, ranks, num_pages=7, max_model_len=80, **way)
    assert two == one
    assert one[1] > 0


@divided
def test_drafts_are_verified(llama: Path, ranks: dict[str, int]) -> None:
    phrase = random_ids(Random(3), 6)
    settings = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}}

    def answers(rig: Rig) -> tuple[list[list[int]], bool]:
        found = rig.tokens([phrase * 4, phrase * 3], greedy(16, ignore_eos=True))
        return found, rig.engine.stats().speculation.num_draft_tokens_total > 0

    one, two = on_one_and_several(llama, plugins(), answers, ranks, **settings)
    assert two == one
    assert one[1]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_weights_give_almost_the_same_log_probabilities(llama: Path, quantization: str) -> None:
    """The scales of int8 are those of whole rows, which ranks have in parts."""
    prompt = random_ids(Random(5), 40)

    def scores(rig: Rig) -> torch.Tensor:
        rig.add(prompt, greedy(1, prompt_logprobs=0))
        (answer,) = rig.drain().values()
        return torch.tensor([each.logprob for each in answer.deltas[-1].prompt_logprobs or () if each is not None])

    exact = on_one_and_several(llama, plugins(), scores, max_num_batched_tokens=64)[0]
    one, two = on_one_and_several(llama, plugins(), scores, quantization=quantization, max_num_batched_tokens=64)
    error = (one - exact).abs().mean()
    assert 0 < (two - exact).abs().mean() < 1.5 * error + 1e-3
    assert (two - one).abs().mean() < 1.5 * error + 1e-3


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_stages_have_whole_matrices_so_that_quantized_answers_are_the_same(llama: Path, quantization: str) -> None:
    prompts = [random_ids(Random(i), 20) for i in range(3)]
    one, two = on_one_and_several(
        llama, plugins(), lambda rig: rig.tokens(prompts, greedy(8)), TWO_STAGES, quantization=quantization
    )
    assert two == one


@divided
def test_embeddings_are_the_same(tmp_path: Path, ranks: dict[str, int]) -> None:
    save(reference_model("BertModel"), tmp_path)
    byte_tokenizer(tmp_path)
    prompts = [random_ids(Random(i), length) for i, length in enumerate((5, 30, 12))]
    one, two = on_one_and_several(tmp_path, plugins(), lambda rig: pooled(rig, prompts, task="embed"), ranks)
    for mine, theirs in zip(two, one, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("llama_outputs", TWO_RANKS), ("llama_inputs", TWO_STAGES), ("phi3", TWO_RANKS), ("opt", TWO_RANKS)],
)
def test_ia3(tmp_path: Path, name: str, ranks: dict[str, int]) -> None:
    world = Ia3World(tmp_path, IA3_CASES[name])
    prompts = [random_ids(Random(i), 12) for i in range(4)]
    kinds = [None, "a", "b", "a"]

    def answers(rig: Rig) -> list[list[int]]:
        for adapter, path in world.paths.items():
            rig.engine.load_adapter(adapter, path)
        uses = [() if kind is None else (WeightedAdapter(AdapterRef(name=kind)),) for kind in kinds]
        ids = [
            rig.add(prompt, greedy(8, ignore_eos=True), adapters=use) for prompt, use in zip(prompts, uses, strict=True)
        ]
        found = rig.drain()
        return [found[request_id, 0].token_ids for request_id in ids]

    one, two = on_one_and_several(world.folder, plugins(), answers, ranks)
    assert two == one
    assert one[1] == world.greedy("a", prompts[1], 8)


@divided
def test_virtual_tokens(tmp_path: Path, ranks: dict[str, int]) -> None:
    world = VirtualTokensWorld(tmp_path, "LlamaForCausalLM", ("prompt", "mlp", "prefix", "lora"), **DIVIDED_GROUPS)
    prompts = [random_ids(Random(i), 9) for i in range(len(world.models))]

    def answers(rig: Rig) -> list[list[int]]:
        world.load(rig)
        ids = [
            rig.add(prompt, greedy(8, ignore_eos=True), adapters=using(kind))
            for prompt, kind in zip(prompts, world.models, strict=True)
        ]
        found = rig.drain()
        return [found[request_id, 0].token_ids for request_id in ids]

    one, two = on_one_and_several(world.folder, plugins(), answers, ranks)
    assert two == one
