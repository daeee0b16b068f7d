"""MTP layers draft what transformers' layer computes from the same hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_oracle import drafts, norm
from engine_rig import greedy, make_rig, rig_of
from head_rig import Tensors, drafted_rig, final_hidden
from mtp_models import FAMILIES, GLM, QWEN, WIDTH, cut_layer, mtp_tensors
from torch import Tensor
from torch.nn import functional
from varied_requests import SETTINGS, answered, shown

from quire.errors import ConfigError
from quire_testing.tiny import reference_model, tiny_llama

PROMPTS = [list(range(first, first + length)) for first, length in ((5, 3), (60, 9), (100, 30), (150, 70))]


class Oracle:
    """The last layer of a transformers model as an MTP layer. offset: what norms add to their weights."""

    def __init__(self, model: Any, own: Tensors) -> None:
        self.is_qwen = type(model).__name__ == QWEN
        self.own, self.model, self.offset = own, model.model, float(self.is_qwen)
        self.table = own.get("embed_tokens.weight", model.model.embed_tokens.weight.data.clone())
        self.head = own.get("shared_head.head.weight", model.lm_head.weight.data.clone())
        self.model.layers = torch.nn.ModuleList([self.model.layers[-1]])
        self.model.layers[0].self_attn.layer_idx = 0
        self.model.config.num_hidden_layers = 1
        self.model.norm = torch.nn.Identity()

    def next_features(self, embeddings: Tensor, features: Tensor) -> Tensor:
        both = [self.norm(embeddings, "enorm"), self.norm(features, "hnorm")]
        x = functional.linear(torch.cat(both, -1), self.own["eh_proj.weight"])
        with torch.no_grad():
            found: Tensor = self.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        return self.norm(found, "shared_head.norm") if self.is_qwen else found

    def norm(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.own[f"{name}.weight"] + self.offset)

    def logits(self, feature: Tensor) -> Tensor:
        return self.head @ (feature if self.is_qwen else self.norm(feature, "shared_head.norm"))

    def drafts(self, token_ids: Sequence[int], hidden: Tensor, count: int) -> list[int]:
        return drafts(self.next_features, self.logits, self.table, token_ids, hidden, count)


@pytest.mark.parametrize(
    ("architecture", "own"), [(name, own) for name in FAMILIES for own in (False, True) if not (own and name == QWEN)]
)
def test_drafts_are_those_of_the_oracle(tmp_path: Path, architecture: str, own: bool) -> None:
    model = reference_model(architecture, 4, num_hidden_layers=3, **FAMILIES[architecture])
    tensors = mtp_tensors(own, own)
    folder = cut_layer(model, tmp_path / "model", tensors)
    oracle = Oracle(model, tensors)
    with drafted_rig(folder, "mtp", None) as (rig, proposals):
        answers = rig.tokens(PROMPTS, greedy(9, ignore_eos=True))
    assert len(proposals.every) > 20
    for query, tokens, draft in proposals.every:
        assert draft == oracle.drafts(tokens, final_hidden(folder, tokens)[:-1], query.max_drafts)
    with rig_of(folder) as rig:
        assert rig.tokens(PROMPTS, greedy(9, ignore_eos=True)) == answers


@pytest.mark.parametrize("settings", [SETTINGS[1], SETTINGS[2]], ids=str)
def test_layers_change_no_answer(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = reference_model(GLM, 4, num_hidden_layers=3, **FAMILIES[GLM])
    folder = cut_layer(model, tmp_path / "model", mtp_tensors(False, False))
    with rig_of(folder) as rig:
        expected = shown(answered(rig))
    with drafted_rig(folder, "mtp", None, **settings) as (rig, proposals):
        assert shown(answered(rig)) == expected
        rig.engine.step()
        assert proposals.num_drafted > 100
        assert proposals.built.pages.num_free == proposals.built.num_pages


BAD: list[tuple[str, dict[str, Tensor | None], str]] = [
    ("no layer", {"eh_proj.weight": None}, "lacks the tensor 'model.layers.2.eh_proj.weight'"),
    ("norm", {"hnorm.weight": None}, "lacks 'hnorm.weight'"),
    ("narrow", {"eh_proj.weight": torch.ones(WIDTH, WIDTH)}, r"'eh_proj.weight' has shape \[64, 64\]"),
    ("nan", {"enorm.weight": torch.full((WIDTH,), torch.nan)}, "'model.layers.2.enorm.weight' contains NaN"),
    ("head", {"shared_head.head.weight": torch.ones(9, WIDTH)}, "'shared_head.head.weight' has shape"),
    ("other", {"shared_head.more.weight": torch.ones(9)}, "'shared_head.more.weight'"),
]


@pytest.mark.parametrize(("changes", "message"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_layers_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Tensor | None], message: str) -> None:
    model = reference_model(GLM, 4, num_hidden_layers=3, **FAMILIES[GLM])
    tensors = {name: t for name, t in {**mtp_tensors(False, False), **changes}.items() if t is not None}
    folder = cut_layer(model, tmp_path / "model", tensors)
    with pytest.raises(ConfigError, match=message), drafted_rig(folder, "mtp", None):
        pass


def test_models_without_such_layers_are_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    with pytest.raises(ConfigError, match="has no layer that predicts further tokens"):
        make_rig(folder, speculative_config={"method": "mtp"})
