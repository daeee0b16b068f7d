"""Embeddings, classes and scores of tiny models equal those of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import related_prompts, rig_of
from pooling_rig import close, edit, hidden_of, made, pooled, unit

from quire import LLM

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
