"""Pooling requests: parameters, batches with generation, and the `LLM` class."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, random_ids, related_prompts, rig_of
from pooling_rig import close, edit, hidden_of, made, pooled, unit
from torch import Tensor

from quire import LLM
from quire.errors import BadRequest
from quire.params.pooling import PoolingParams
from quire.types import Prompt
from quire_testing.tiny import tiny_model

# --- what a request may ask -------------------------------------------------------------------------


def test_what_a_model_cannot_do_is_refused_with_what_it_can(tmp_path: Path) -> None:
    with rig_of(tiny_model(tmp_path, "LlamaForCausalLM")) as rig:
        with pytest.raises(BadRequest, match=r"cannot do `classify`\. It can do: generate, embed, token_embed"):
            rig.add([1], PoolingParams(task="classify"))
        with pytest.raises(BadRequest, match="was not trained to give fewer than 64"):
            rig.add([1], PoolingParams(dimensions=8))
        with pytest.raises(BadRequest, match="at least one"):
            rig.add([], PoolingParams())
        with pytest.raises(BadRequest, match="maximum context length is 512"):
            rig.add([1] * 513, PoolingParams())
        with pytest.raises(BadRequest, match="has no token types"):
            rig.add(Prompt(token_ids=(1, 2), token_types=(0, 1)), PoolingParams())
        assert pooled(rig, [[1] * 512])[0].shape == (64,)


def test_a_prompt_may_be_as_long_as_the_table_of_positions(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "RobertaModel", max_position_embeddings=66, pad_token_id=1, type_vocab_size=1)
    with rig_of(folder) as rig:
        assert rig.engine.info.max_model_len == 64
        assert pooled(rig, [[5] * 64])[0].shape == (64,)
        with pytest.raises(BadRequest, match="maximum context length is 64"):
            rig.add([5] * 65, PoolingParams())


@pytest.mark.parametrize(
    "params", [{"task": "generate"}, {"dimensions": 0}, {"dimensions": True}, {"use_activation": 1}]
)
def test_parameters_that_cannot_be_are_refused(params: Any) -> None:
    with pytest.raises(BadRequest):
        PoolingParams(**params)


# --- beside others ----------------------------------------------------------------------------------

WAYS = {
    "tiny chunks": {"max_num_batched_tokens": 5},
    "no cache": {"enable_prefix_caching": False},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 64},
    "recompute": {"num_pages": 10, "preemption": "recompute"},
    "swap": {"num_pages": 10, "preemption": "swap", "swap_space": 0.01},
    "batch invariant": {"batch_invariant": True},
}


POOLINGS = ("last", "cls", "mean")

# each way with one pooling in turn; every pooling where seqs are computed again, and where they are cut the most
PAIRS = [(way, POOLINGS[number % 3]) for number, way in enumerate(WAYS)]
PAIRS += [(way, pooling) for way in ("tiny chunks", "recompute") for pooling in POOLINGS if (way, pooling) not in PAIRS]


@pytest.mark.parametrize(("way", "pooling"), PAIRS)
def test_embeddings_and_texts_come_out_the_same_beside_each_other(tmp_path: Path, way: str, pooling: str) -> None:
    folder, model = made(tmp_path, "LlamaForCausalLM")
    prompts, talk = related_prompts(12), related_prompts(8, seed=1)
    with rig_of(folder, pooling=pooling, **WAYS[way]) as rig:
        alone = rig.tokens(talk, greedy(24, ignore_eos=True))
        rng = random.Random(2)
        order = rng.sample(range(20), 20)
        ids: dict[int, str] = {}
        for number in order:
            if number < 12:
                task = ("embed", "token_embed")[number % 2]
                ids[number] = rig.add(prompts[number], PoolingParams(task=task))
            else:
                ids[number] = rig.add(talk[number - 12], greedy(24, ignore_eos=True))
        answers = rig.drain()
        for number, prompt in enumerate(prompts):
            states = hidden_of(model, prompt)
            one = {"last": states[-1], "cls": states[0], "mean": states.mean(0)}[pooling]
            found = torch.from_numpy(answers[ids[number], 0].last.pooled.numbers().copy())
            assert close(found, unit(states if number % 2 else one))
        assert [answers[ids[12 + i], 0].token_ids for i in range(8)] == alone
        if way in ("recompute", "swap"):
            stats = rig.engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0


def test_a_prompt_that_was_read_is_not_read_again_where_its_end_is_enough(tmp_path: Path) -> None:
    prompt = random_ids(random.Random(3), 30)
    with rig_of(tiny_model(tmp_path, "LlamaForCausalLM"), page_size=4) as rig:
        rig.tokens([prompt], greedy(2))
        for task, cached in (("embed", 28), ("token_embed", 0)):
            request_id = rig.add(prompt, PoolingParams(task=task))
            assert rig.drain()[request_id, 0].last.num_cached_tokens == cached


def test_an_aborted_prompt_leaves_nothing_behind(tmp_path: Path) -> None:
    with rig_of(tiny_model(tmp_path, "LlamaForCausalLM"), pooling="mean") as rig:
        gone = rig.add(list(range(40)), PoolingParams())
        rig.engine.step()
        rig.engine.abort(gone)
        stays = rig.add(list(range(20)), PoolingParams())
        assert list(rig.drain()) == [(stays, 0)]
        assert len(rig.engine._runner._poolers) == 0


def test_late_interaction_scores_by_the_best_match_of_each_token(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder, bert = made(tmp_path, "BertModel")
    linear = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    state = {f"bert.{name}": tensor for name, tensor in bert.state_dict().items() if "position_ids" not in name}
    save_file({**state, "linear.weight": linear}, folder / "model.safetensors")
    edit(folder / "config.json", architectures=["HF_ColBERT"], dim=16)

    def vectors(text: str) -> Tensor:
        with torch.inference_mode():
            return unit(bert(torch.tensor([list(text.encode())])).last_hidden_state[0] @ linear.T)

    query, documents = "who sings", ["the river sings beneath", "seven houses"]
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        assert llm.tasks == ("token_embed",)
        scores = [one.outputs.score for one in llm.score(query, documents, use_tqdm=False)]
    wanted = [(vectors(query) @ vectors(text).T).max(1).values.sum().item() for text in documents]
    assert scores == pytest.approx(wanted, rel=1e-5)


def test_llm_gives_vectors_classes_scores_and_rewards(tmp_path: Path) -> None:
    folder, judge = made(tmp_path, "Qwen2ForSequenceClassification", num_labels=1)
    texts = ["the river sings", "seven quiet mountains"]
    with torch.inference_mode():
        bare = [judge(torch.tensor([list(text.encode())])).logits[0, 0].item() for text in texts]
        pair = judge(torch.tensor([list("".join(texts).encode())])).logits[0].sigmoid()
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        rewards = [one.outputs.data.item() for one in llm.reward(texts, use_tqdm=False)]
        classes = [one.outputs.probs for one in llm.classify(texts, use_tqdm=False)]
        (scored,) = llm.score(texts[0], texts[1], use_tqdm=False)
        steps = llm.encode(texts, pooling_task="token_classify", use_tqdm=False)
        with pytest.raises(BadRequest, match="maximum context length is 512"):
            llm.classify("x" * 600)
        assert len(llm.classify("x" * 600, truncate_prompt_tokens=-1, use_tqdm=False)[0].prompt_token_ids) == 512
    assert rewards == pytest.approx(bare, abs=1e-5)
    assert [one[0] for one in classes] == pytest.approx(torch.tensor(bare).sigmoid().tolist(), abs=1e-5)
    assert scored.outputs.score == pytest.approx(pair.item(), abs=1e-5)
    assert [tuple(one.outputs.data.shape) for one in steps] == [(len(text), 1) for text in texts]


def test_encode_needs_no_task_where_the_model_has_one(tmp_path: Path) -> None:
    folder, judge = made(tmp_path, "Qwen2ForSequenceClassification", num_labels=1)
    with torch.inference_mode():
        bare = judge(torch.tensor([list(b"text")])).logits[0, 0]
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_pages": 64}
    with LLM(str(folder), **settings) as llm:
        torch.testing.assert_close(llm.encode("text", use_tqdm=False)[0].outputs.data, bare.sigmoid()[None])
    with LLM(str(folder), task="reward", **settings) as llm:
        torch.testing.assert_close(llm.encode("text", use_tqdm=False)[0].outputs.data, bare[None])
    folder, _ = made(tmp_path / "text", "Qwen2ForCausalLM")
    with LLM(str(folder), task="embed", **settings) as llm:
        (found,), (wanted,) = llm.encode("text", use_tqdm=False), llm.embed("text", use_tqdm=False)
        assert found.outputs.data.tolist() == wanted.outputs.embedding
    with LLM(str(folder), task="generate", **settings) as llm, pytest.raises(BadRequest, match="of this model: none"):
        llm.encode("text")
