"""Prompts that are pooled, by engines on tiny models; transformers and sentence-transformers say what should come."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, random_ids, related_prompts, rig_of
from torch import Tensor

from quire import LLM
from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.pooling import PoolingParams
from quire.testing.tiny import byte_tokenizer, reference_model, save, tiny_model
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt

RELATIVE = 1e-5
"""Of the largest number: how far float32 results may be from the oracle's."""

FAMILIES = {
    "Llama": {},
    "Mistral": {"sliding_window": 9},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
    "Gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 24},
    "Gemma3Text": {"sliding_window": 9, "query_pre_attn_scalar": 24},
    "Phi3": {},
}


def made(tmp_path: Path, architecture: str, **overrides: Any) -> tuple[Path, Any]:
    """The folder of a tiny random model, and the model."""
    reference = reference_model(architecture, **overrides)
    save(reference, tmp_path)
    return byte_tokenizer(tmp_path), reference


@torch.inference_mode()
def hidden_of(model: Any, prompt: list[int]) -> Tensor:
    """Hidden states after the last norm, [tokens, width]."""
    decoder = getattr(model, "model", model)
    states: Tensor = decoder(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    return states


def pooled(rig: Rig, prompts: list[list[int]], **params: Any) -> list[Tensor]:
    ids = [rig.add(prompt, PoolingParams(**params)) for prompt in prompts]
    answers = rig.drain()
    for request_id in ids:
        last = answers[request_id, 0].last
        assert (last.finish_reason, last.error, len(answers[request_id, 0].deltas)) == ("stop", None, 1)
    return [torch.from_numpy(answers[i, 0].last.pooled.numbers().copy()) for i in ids]


def close(found: Tensor, wanted: Tensor) -> bool:
    assert found.shape == wanted.shape
    return bool((found - wanted).abs().max() <= RELATIVE * wanted.abs().max())


def unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_without_its_head_embeds_and_classifies_as_transformers_does(tmp_path: Path, family: str) -> None:
    prompts = related_prompts()
    folder, bare = made(tmp_path / "bare", f"{family}Model", **FAMILIES[family])
    with rig_of(folder) as rig:
        assert rig.engine.info.tasks == ("embed", "token_embed")
        for prompt, vector in zip(prompts, pooled(rig, prompts), strict=True):
            assert close(vector, unit(hidden_of(bare, prompt)[-1]))
    folder, classifier = made(
        tmp_path / "classes", f"{family}ForSequenceClassification", num_labels=3, **FAMILIES[family]
    )
    with rig_of(folder) as rig:
        assert rig.engine.info.tasks == ("classify", "token_classify")
        assert rig.engine.info.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        for prompt, classes in zip(prompts, pooled(rig, prompts, task="classify"), strict=True):
            with torch.inference_mode():
                wanted = classifier(torch.tensor([prompt]), use_cache=False).logits[0].softmax(-1)
            assert close(classes, wanted)


def test_tokens_are_classified_each_for_itself(tmp_path: Path) -> None:
    folder, model = made(tmp_path, "Qwen3ForTokenClassification", num_labels=4)
    prompts = related_prompts()
    with rig_of(folder) as rig:
        for prompt, classes in zip(prompts, pooled(rig, prompts, task="token_classify"), strict=True):
            with torch.inference_mode():
                assert close(classes, model(torch.tensor([prompt])).logits[0].softmax(-1))


@pytest.mark.parametrize(("kind", "outputs"), [("Qwen2ForRewardModel", 1), ("Qwen2ForProcessRewardModel", 2)])
def test_reward_models_score_texts_and_steps(tmp_path: Path, kind: str, outputs: int) -> None:
    folder, bare = made(tmp_path, "Qwen2Model")
    torch.manual_seed(4)
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, outputs))
    state = {f"model.{name}": tensor for name, tensor in bare.state_dict().items()}
    state |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors")
    edit(folder / "config.json", architectures=[kind], num_labels=outputs)
    prompts = related_prompts()
    with rig_of(folder) as rig, torch.inference_mode():
        steps = pooled(rig, prompts, task="token_classify")
        wanted = [head(hidden_of(bare, prompt)) for prompt in prompts]
        if outputs == 2:
            assert rig.engine.info.tasks == ("token_classify",)
            assert all(map(close, steps, [w.softmax(-1) for w in wanted]))
        else:
            assert all(map(close, steps, wanted))
            assert close(torch.stack(pooled(rig, prompts, task="classify")), torch.stack([w[-1] for w in wanted]))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- what the folder says ---------------------------------------------------------------------------


def sentence_model(folder: Path, mode: str, dense: bool, normalize: bool) -> Any:
    """A tiny model in the format of sentence-transformers, and the model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    tiny_model(folder / "inner", "Qwen3Model")
    byte_tokenizer(folder / "inner", chat_template=None)  # with one, texts would be taken for messages
    modules: list[Any] = [Transformer(str(folder / "inner")), Pooling(64, pooling_mode=mode)]
    if dense:
        torch.manual_seed(1)
        modules.append(Dense(64, 24, activation_function=torch.nn.Tanh()))
    if normalize:
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(folder / "model"))
    return model


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize(("dense", "normalize"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_folder_of_sentence_transformers_embeds_as_that_does(
    tmp_path: Path, mode: str, dense: bool, normalize: bool
) -> None:
    model = sentence_model(tmp_path, mode, dense, normalize)
    texts = ["a", "The quick brown fox jumps over the lazy dog.", "Wer reitet so spät durch Nacht und Wind?"]
    wanted = model.encode(texts, convert_to_tensor=True)
    with rig_of(tmp_path / "model") as rig:
        assert rig.engine.info.embedding_size == (24 if dense else 64)
        found = pooled(rig, [list(text.encode()) for text in texts])
    assert all(map(close, found, wanted))


ORDERS = ["ND", "NDN", "DND", "NDD", "DDN", "NNDNN"]


@pytest.mark.parametrize("order", ORDERS)
def test_modules_run_in_the_order_of_their_list(tmp_path: Path, order: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Normalize

    first = sentence_model(tmp_path, "mean", dense=False, normalize=False)
    torch.manual_seed(2)
    sizes = iter([(64, 24), (24, 40)])
    after = [Normalize() if kind == "N" else Dense(*next(sizes), activation_function=torch.nn.Tanh()) for kind in order]
    model = SentenceTransformer(modules=[*first, Dropout(0.1), *after], device="cpu").eval()
    model.save(str(tmp_path / "ordered"))
    texts = ["a", "The quick brown fox jumps over the lazy dog."]
    wanted = model.encode(texts, convert_to_tensor=True)
    with rig_of(tmp_path / "ordered") as rig:
        found = pooled(rig, [list(text.encode()) for text in texts])
    assert all(map(close, found, wanted))


@pytest.mark.parametrize("written", ["by the tokenizer", "by its own file", "nowhere"])
def test_texts_may_be_as_long_as_sentence_transformers_says(tmp_path: Path, written: str) -> None:
    model = sentence_model(tmp_path, "mean", dense=False, normalize=True)
    model.max_seq_length = 31 if written == "by the tokenizer" else 10**30
    model.save(str(tmp_path / "model"))
    if written == "by its own file":
        edit(tmp_path / "model" / "sentence_bert_config.json", max_seq_length=31)
    with rig_of(tmp_path / "model") as rig:
        assert rig.engine.info.max_model_len == (512 if written == "nowhere" else 31)


def test_texts_are_lowered_where_sentence_transformers_lowers_them(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    sentence_model(tmp_path, "mean", dense=False, normalize=False)
    folder = tmp_path / "model"
    assert Tokenizer.load(folder).encode("LOUD") == list(b"LOUD")
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    texts = ["LOUD", "Wer reitet SO SPÄT durch Nacht und Wind?"]
    wanted = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    tokenizer = Tokenizer.load(folder)
    with rig_of(folder) as rig:
        found = pooled(rig, [tokenizer.encode(text) for text in texts])
    assert tokenizer.encode("LOUD") == list(b"loud")
    assert all(map(close, found, wanted))


def test_modules_that_cannot_be_run_are_named_at_the_start(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "Qwen3Model")
    pooling = tmp_path / "1_Pooling"
    pooling.mkdir()

    def refused(modules: Any, config: Any = None, match: str = "") -> None:
        (folder / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
        (pooling / "config.json").write_text(json.dumps(config or {}))
        with pytest.raises(CheckpointError, match=match), rig_of(folder):
            pass

    usual = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    refused([*usual, {"type": "x.LSTM", "path": "2_LSTM"}], match="asks for 'LSTM'; known are Transformer")
    refused(usual, {"pooling_mode_max_tokens": True}, match="pooling by pooling_mode_max_tokens; one of mean")
    refused(usual, {"pooling_mode": ["mean", "cls"]}, match="pooling by mean and cls")
    refused([{"type": "x.Pooling", "path": "../elsewhere"}], match="outside its folder")
    refused(
        [usual[0], {"type": "x.Normalize", "path": "2"}, usual[1]], match="lists Transformer, Normalize, Pooling; it"
    )
    refused([*usual, usual[1]], match="must list one Transformer, one Pooling and then")
    refused([usual[0], {"type": "x.Dense", "path": "1_Pooling"}], match="lists Transformer, Dense")
    refused("{", match="not valid JSON")
    refused({}, match="must hold a JSON list of objects")
    dense = [*usual, {"type": "x.Dense", "path": "1_Pooling"}]
    refused(dense, {}, match="must say `out_features`")
    refused(dense, {"out_features": 8, "activation_function": "os.system"}, match="activation 'system'")
    refused(dense, {"out_features": 8}, match="has no weights")
    refused(dense, {"out_features": 8, "use_residual": True}, match="`use_residual` True; only False can be")
    refused(dense, {"out_features": 8, "module_input_name": "token_embeddings"}, match="`module_input_name`")


def test_settings_choose_task_pooling_and_dimensions(tmp_path: Path) -> None:
    folder, model = made(tmp_path, "LlamaForCausalLM")
    prompt = related_prompts()[0]
    states = hidden_of(model, prompt)
    for setting, wanted in (("cls", states[0]), ("mean", states.mean(0)), ("last", states[-1])):
        with rig_of(folder, pooling=setting, matryoshka=True) as rig:
            assert close(pooled(rig, [prompt])[0], unit(wanted))
            assert close(pooled(rig, [prompt], dimensions=10)[0], unit(wanted[:10]))
            assert close(pooled(rig, [prompt], use_activation=False)[0], wanted)
            with pytest.raises(BadRequest, match="must be from 1 to 64 for the model `tiny`, got 65"):
                rig.add(prompt, PoolingParams(dimensions=65))
    with (
        rig_of(folder, task="embed") as rig,
        pytest.raises(BadRequest, match=r"cannot do `generate`\. It can do: embed, tok"),
    ):
        rig.add(prompt, greedy())
    with rig_of(folder, task="generate") as rig, pytest.raises(BadRequest, match=r"`embed`\. It can do: gen"):
        rig.add(prompt, PoolingParams())
    with (
        pytest.raises(ConfigError, match="--task classify: this model cannot do it; it can do generate"),
        rig_of(folder, task="classify"),
    ):
        pass


def test_a_model_says_which_dimensions_it_was_trained_for(tmp_path: Path) -> None:
    folder, model = made(tmp_path, "Qwen3Model")
    edit(folder / "config.json", matryoshka_dimensions=[16, 32])
    prompt = related_prompts()[0]
    with rig_of(folder) as rig:
        assert close(pooled(rig, [prompt], dimensions=16)[0], unit(hidden_of(model, prompt)[-1][:16]))
        with pytest.raises(BadRequest, match="must be one of 16, 32 for the model `tiny`, got 20"):
            rig.add(prompt, PoolingParams(dimensions=20))


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
    "recompute": {"num_pages": 40, "preemption": "recompute"},
    "swap": {"num_pages": 40, "preemption": "swap", "swap_space": 0.01},
    "batch invariant": {"batch_invariant": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pooling", ["last", "cls", "mean"])
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
    with rig_of(tiny_model(tmp_path, "LlamaForCausalLM")) as rig:
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
        assert not rig.engine._runner._poolers.anyone


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


ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"type_vocab_size": 1, "max_position_embeddings": 514, "pad_token_id": 1},
    "XLMRoberta": {"type_vocab_size": 1, "max_position_embeddings": 514, "pad_token_id": 1},
    "DistilBert": {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4},
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2},
}


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_embed_classify_and_judge_pairs_as_transformers_does(tmp_path: Path, family: str) -> None:
    texts = ["who sings", "the river sings beneath seven quiet mountains", "a", "rain falls on paper " * 9]
    folder, bare = made(tmp_path / "bare", f"{family}Model", **ENCODERS[family])
    with LLM(str(folder), dtype="float32", device="cpu") as llm, torch.inference_mode():
        found = [torch.tensor(one.outputs.embedding) for one in llm.embed(texts, use_tqdm=False)]
        wanted = [unit(bare(torch.tensor([list(text.encode())])).last_hidden_state[0].mean(0)) for text in texts]
    assert all(map(close, found, wanted))

    folder, judge = made(tmp_path / "judge", f"{family}ForSequenceClassification", num_labels=1, **ENCODERS[family])
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        scores = [one.outputs.score for one in llm.score(texts[0], texts[1:], use_tqdm=False)]
    for score, text in zip(scores, texts[1:], strict=True):
        first, second = texts[0].encode(), text.encode()
        given = {"input_ids": torch.tensor([list(first + second)])}
        if family == "Bert":
            given["token_type_ids"] = torch.tensor([[0] * len(first) + [1] * len(second)])
        with torch.inference_mode():
            assert score == pytest.approx(judge(**given).logits[0, 0].sigmoid().item(), rel=1e-5)
