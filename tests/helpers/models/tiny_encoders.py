"""Every bundled encoder with tiny random weights, and transformers' model of the same folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.records import Architecture, OpQuery
from quire_kernels import select
from quire_kernels.cpu import build, isa
from quire_models import Pooling
from quire_models.loading import checkpoint, tensor_files, weights
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.encoder import EncoderModel
from quire_models.parts.encoder import Encoder
from quire_models.testing import ModelDriver
from quire_testing.tiny import reference_model, save

TOLERANCE = 1e-5


needs_cpp = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")


LENGTHS = (1, 33, 2, 17, 64, 9, 16)


FAMILIES = ("bert", "modernbert")


MODERN = {"global_attn_every_n_layers": 2, "num_hidden_layers": 4, "local_attention": 8}


ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 514}


DISTIL = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}


@dataclass(frozen=True)
class Case:
    """An architecture at a tiny size; `config` are fields that differ from those of `quire_testing.tiny`."""

    architecture: str
    config: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "bert": Case("BertModel"),
    "bert with other sizes": Case("BertModel", {"hidden_size": 72, "num_attention_heads": 3, "hidden_act": "relu"}),
    "bert for masked words": Case("BertForMaskedLM"),
    "bert as first trained": Case("BertForPreTraining"),
    "bert classes": Case("BertForSequenceClassification", {"num_labels": 3}),
    "bert score": Case("BertForSequenceClassification", {"num_labels": 1}),
    "bert tags": Case("BertForTokenClassification", {"num_labels": 5}),
    "roberta": Case("RobertaModel", ROBERTA),
    "roberta for masked words": Case("RobertaForMaskedLM", ROBERTA),
    "roberta classes": Case(
        "RobertaForSequenceClassification", {**ROBERTA, "num_labels": 4, "problem_type": "multi_label_classification"}
    ),
    "roberta tags": Case("RobertaForTokenClassification", ROBERTA),
    "xlm-roberta": Case("XLMRobertaModel", {**ROBERTA, "type_vocab_size": 1}),
    "xlm-roberta for masked words": Case("XLMRobertaForMaskedLM", ROBERTA),
    "xlm-roberta classes": Case(
        "XLMRobertaForSequenceClassification", {**ROBERTA, "num_labels": 1, "problem_type": "regression"}
    ),
    "xlm-roberta tags": Case("XLMRobertaForTokenClassification", ROBERTA),
    "distilbert": Case("DistilBertModel", DISTIL),
    "distilbert for masked words": Case("DistilBertForMaskedLM", DISTIL),
    "distilbert classes": Case("DistilBertForSequenceClassification", DISTIL),
    "distilbert tags": Case("DistilBertForTokenClassification", DISTIL),
    "modernbert": Case("ModernBertModel", MODERN),
    "modernbert with biases": Case(
        "ModernBertModel", {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True}
    ),
    "modernbert for masked words": Case("ModernBertForMaskedLM", MODERN),
    "modernbert classes": Case("ModernBertForSequenceClassification", {**MODERN, "num_labels": 3}),
    "modernbert classes of the mean": Case(
        "ModernBertForSequenceClassification", {**MODERN, "classifier_pooling": "mean", "classifier_bias": True}
    ),
    "modernbert tags": Case("ModernBertForTokenClassification", {**MODERN, "classifier_activation": "silu"}),
}


FINISHES = {
    "bert classes": "softmax",
    "bert score": "sigmoid",
    "roberta classes": "sigmoid",
    "xlm-roberta classes": "none",
    "distilbert classes": "softmax",
    "modernbert classes": "softmax",
    "modernbert classes of the mean": "softmax",
}


TAGGERS = [name for name in CASES if name.endswith("tags")]


@cache
def architectures() -> dict[str, Architecture]:
    modules = [import_module(f"quire_plugins.architectures.{family}") for family in FAMILIES]
    return {record.name: record for module in modules for record in module.quire_architectures()}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    module: EncoderModel
    part: Encoder
    pooling: Pooling | None


def load(folder: Path, name: str, ops: select.Ops, dtype: torch.dtype = torch.float32) -> Loaded:
    """What the folder holds, by the way that every model is loaded."""
    config, record = checkpoint.read_config(folder), architectures()[name]
    part, pooling = record.decoder(config), record.pooling(config) if record.pooling else None
    make = ModuleBuilder(ops, dtype, torch.device("cpu"), keep_weights=False)
    module = part.build(make)
    for head_name, head in pooling.heads.items() if pooling else ():
        module.heads[head_name] = head.build(part.width, make)
    weights.load(module, part, record.names, tensor_files.find(folder))
    return Loaded(module=module.eval(), part=part, pooling=pooling)


@cache
def pair(case_id: str) -> tuple[Any, Loaded]:
    """transformers' model and ours, of one folder."""
    case = CASES[case_id]
    theirs = reference_model(case.architecture, **case.config)
    with TemporaryDirectory() as folder:
        save(theirs, folder)
        ours = load(Path(folder), case.architecture, select.choose(OpQuery("cpu", "float32")))
    return theirs, ours


def reloaded(case_id: str, ops: select.Ops, dtype: torch.dtype = torch.float32) -> Loaded:
    """The same model as `pair` has, with other ops or in another data type."""
    with TemporaryDirectory() as folder:
        save(pair(case_id)[0], folder)
        return load(Path(folder), CASES[case_id].architecture, ops, dtype)


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    made = torch.Generator().manual_seed(1)
    return [torch.randint(2, 256, (length,), generator=made).tolist() for length in lengths]


def expected(model: Any, tokens: Sequence[int], types: Sequence[int] | None = None) -> Tensor:
    """Hidden states that transformers has for one prompt, [len, width]."""
    given = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.inference_mode():
        found: Tensor = model.base_model(torch.tensor([tokens]), **given).last_hidden_state[0]
    return found


def hidden(loaded: Loaded, seqs: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
    with torch.inference_mode():
        return ModelDriver(loaded.module, loaded.part, seqs, token_types=types).hidden(range(len(seqs)))


def close(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == want.shape
    assert (got.float() - want).abs().max() <= tolerance * want.abs().max()
