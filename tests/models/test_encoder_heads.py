"""Heads of encoders, and checkpoints as they are published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_encoders import CASES, FINISHES, TAGGERS, architectures, close, expected, hidden, load, pair, prompts

from quire.errors import CheckpointError
from quire.records import OpQuery
from quire_kernels import select
from quire_models.loading import config_fields as configs
from quire_models.modules.projection import projections
from quire_testing.tiny import reference_model

# --- heads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case_id", FINISHES)
def test_classes_of_a_prompt_are_those_of_transformers(case_id: str) -> None:
    theirs, ours = pair(case_id)
    assert ours.pooling is not None
    pooler = ours.pooling.poolers["classify"]
    assert pooler.activation == FINISHES[case_id]
    assert pooler.head is not None
    seqs = prompts()
    taken = [x.mean(0) if pooler.pooling_type == "mean" else x[0] for x in hidden(ours, seqs)]
    with torch.inference_mode():
        want = torch.cat([theirs(torch.tensor([tokens])).logits for tokens in seqs])
        close(ours.module.heads[pooler.head](torch.stack(taken)), want)


@pytest.mark.parametrize("case_id", TAGGERS)
def test_classes_of_tokens_are_those_of_transformers(case_id: str) -> None:
    theirs, ours = pair(case_id)
    assert ours.pooling is not None
    pooler = ours.pooling.poolers["token_classify"]
    assert (pooler.pooling_type, pooler.activation) == ("every", "softmax")
    assert pooler.head is not None
    seqs = prompts()
    for states, tokens in zip(hidden(ours, seqs), seqs, strict=True):
        with torch.inference_mode():
            close(ours.module.heads[pooler.head](states), theirs(torch.tensor([tokens])).logits[0])


def test_late_interaction_multiplies_every_token_by_the_matrix_of_the_checkpoint(tmp_path: Path) -> None:
    theirs = reference_model("BertModel")
    theirs.config.architectures = ["HF_ColBERT"]
    theirs.config.dim = 24
    theirs.config.save_pretrained(tmp_path)
    matrix = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    stored = {f"bert.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({**stored, "linear.weight": matrix}, tmp_path / "pytorch_model.bin")
    ours = load(tmp_path, "HF_ColBERT", select.choose(OpQuery("cpu", "float32")))
    assert ours.pooling is not None
    assert ours.pooling.poolers["token_embed"].activation == "normalize"
    [tokens] = prompts((12,))
    with torch.inference_mode():
        got = ours.module.heads["colbert"](hidden(ours, [tokens])[0])
    close(got, expected(theirs, tokens) @ matrix.T)


# --- checkpoints as they are found -------------------------------------------------------------------------


def test_old_checkpoints_with_a_prefix_and_other_names_of_norms_are_read(tmp_path: Path) -> None:
    theirs = reference_model("BertModel")
    theirs.config.architectures = ["BertModel"]
    theirs.config.save_pretrained(tmp_path)
    stored = {}
    for name, tensor in theirs.state_dict().items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        stored[f"bert.{old}"] = tensor
    stored["bert.embeddings.position_ids"] = torch.arange(512)[None]
    stored["cls.predictions.bias"] = torch.zeros(264)
    torch.save(stored, tmp_path / "pytorch_model.bin")
    ours = load(tmp_path, "BertModel", select.choose(OpQuery("cpu", "float32")))
    [tokens] = prompts((12,))
    close(hidden(ours, [tokens])[0], expected(theirs, tokens))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"is_decoder": True}, "is_decoder"), ({"position_embedding_type": "relative_key"}, "'relative_key'")],
)
def test_kinds_of_bert_that_cannot_be_run_are_refused(settings: dict[str, Any], sentence: str) -> None:
    config = SimpleNamespace(**{**reference_model("BertModel").config.to_dict(), **settings})
    with pytest.raises(CheckpointError, match=sentence):
        architectures()["BertModel"].decoder(config)


@pytest.mark.parametrize(
    ("settings", "finish"),
    [
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({}, "softmax"),
        ({"num_labels": 1, "problem_type": "regression"}, "none"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"num_labels": 3, "sentence_transformers": SimpleNamespace(activation_fn="x.Sigmoid")}, "sigmoid"),
        ({"num_labels": 3, "sentence_transformers": {"version": "5.0"}}, "softmax"),
    ],
)
def test_how_scores_are_finished_is_read_from_the_config(settings: dict[str, Any], finish: str) -> None:
    assert configs.classifier_activation(SimpleNamespace(**settings)) == finish


def test_an_unknown_finish_is_refused_with_those_there_are() -> None:
    config = SimpleNamespace(sentence_transformers={"activation_fn": "torch.nn.Mystery"})
    with pytest.raises(CheckpointError, match=r"'torch.nn.Mystery'; supported are Identity, Sigmoid, Softmax"):
        configs.classifier_activation(config)


@pytest.mark.parametrize("case_id", ["bert classes", "roberta classes", "distilbert classes", "modernbert classes"])
def test_adapters_find_every_matrix_by_the_name_that_transformers_has_for_it(case_id: str) -> None:
    theirs, ours = pair(case_id)
    found = projections(ours.module)
    table = architectures()[CASES[case_id].architecture].names
    matrices = [name for name, module in theirs.named_modules() if isinstance(module, torch.nn.Linear)]
    assert len(matrices) >= 10
    assert {table.rename(name) for name in matrices} <= set(found)
