"""EAGLE drafts what a plain implementation computes from the same hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_oracle import drafts, eagle3_features, eagle_features, norm
from engine_rig import greedy, rig_of
from head_rig import drafted_rig, final_hidden, markov_llama, model_weights, write_head
from random_heads import EAGLE_CONFIG, WIDTH, eagle3_tensors, eagle_tensors
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.errors import ConfigError
from quire.params.sampling import SamplingParams
from quire_testing.tiny import VOCAB_SIZE, tiny_llama

PROMPTS = [list(range(first, first + length)) for first, length in ((5, 3), (60, 9), (100, 30), (150, 70))]

READ = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.mark.parametrize(("bias", "own_table", "nested"), [(True, True, False), (False, False, True)])
def test_drafts_are_those_of_the_oracle(
    tmp_path: Path, folder: Path, bias: bool, own_table: bool, nested: bool
) -> None:
    tensors = eagle_tensors(bias, own_table)
    stored = {f"model.{name}": tensor for name, tensor in tensors.items()} if nested else tensors
    config = {"model_type": "eagle", "model": EAGLE_CONFIG} if nested else EAGLE_CONFIG
    weights = model_weights(folder)
    table = tensors.get("embed_tokens.weight", weights["model.embed_tokens.weight"])
    with drafted_rig(folder, "eagle", write_head(tmp_path / "head", config, stored)) as (rig, proposals):
        rig.tokens(PROMPTS, greedy(9, ignore_eos=True))
    assert len(proposals.every) > 20
    for query, tokens, draft in proposals.every:
        expected = drafts(
            partial(eagle_features, tensors),
            lambda feature: weights["lm_head.weight"] @ feature,
            table,
            tokens,
            final_hidden(folder, tokens)[:-1],
            query.max_drafts,
        )
        assert draft == expected


def residual_stream(folder: Path, token_ids: Sequence[int]) -> list[Tensor]:
    """The input of each block, and what the last one returns after the final norm."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model.model(torch.tensor([list(token_ids)]), output_hidden_states=True).hidden_states
    return [each[0] for each in found]


@pytest.mark.parametrize("given", [None, [0, 1, 5]])
def test_drafts_of_eagle3_are_those_of_the_oracle(tmp_path: Path, given: list[int] | None) -> None:
    folder = tiny_llama(tmp_path / "deep", seed=4, num_hidden_layers=6)
    tensors, weights = eagle3_tensors(), model_weights(folder)
    config = EAGLE_CONFIG | ({} if given is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": given}})
    ids = torch.arange(200) + tensors["d2t"]

    def logits(feature: Tensor) -> Tensor:
        own = tensors["lm_head.weight"] @ norm(feature, tensors["norm.weight"])
        return torch.full((VOCAB_SIZE,), -torch.inf).index_copy(0, ids, own)

    with drafted_rig(folder, "eagle3", write_head(tmp_path / "head", config, tensors)) as (rig, proposals):
        plain = rig.tokens(PROMPTS, greedy(9, ignore_eos=True))
    assert len(proposals.every) > 20
    for query, tokens, draft in proposals.every:
        read = [residual_stream(folder, tokens)[i][:-1] for i in given or (2, 3, 3)]
        features = torch.nn.functional.linear(torch.cat(read, -1), tensors["fc.weight"])
        table = weights["model.embed_tokens.weight"]
        step = partial(eagle3_features, tensors)
        assert draft == drafts(step, logits, table, tokens, features, query.max_drafts)
    with rig_of(folder) as rig:
        assert rig.tokens(PROMPTS, greedy(9, ignore_eos=True)) == plain


def test_probabilities_are_those_of_the_draft_vocabulary(tmp_path: Path, folder: Path) -> None:
    tensors = eagle3_tensors()
    drafted = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, torch.arange(200) + tensors["d2t"], True)
    params = [SamplingParams(temperature=0.9, seed=5, top_k=20, max_tokens=8, ignore_eos=True), greedy(8)]
    head = write_head(tmp_path / "head", EAGLE_CONFIG | READ, tensors)
    with drafted_rig(folder, "eagle3", head, wants_probs=True) as (rig, proposals):
        rig.tokens(PROMPTS[:2], params)
    for (query, _, draft), probs in zip(proposals.every, proposals.probs, strict=True):
        assert (probs is None) == (query.params.greedy or not draft)
        if probs is not None:
            assert probs.shape == (len(draft), VOCAB_SIZE)
            torch.testing.assert_close(probs.sum(-1), torch.ones(len(draft)))
            assert not probs[:, ~drafted].any()
            assert all(row[token] > 0 for row, token in zip(probs, draft, strict=True))
            assert int((probs > 0).sum(-1).max()) <= 20
    assert any(probs is not None for probs in proposals.probs)


def test_drafts_after_a_cached_prefix_know_only_what_follows(tmp_path: Path, folder: Path) -> None:
    tensors, weights = eagle_tensors(), model_weights(folder)
    prompt, size, head = PROMPTS[3], 4, write_head(tmp_path / "head", EAGLE_CONFIG, tensors)
    with drafted_rig(folder, "eagle", head, page_size=size) as (rig, proposals):
        first = rig.tokens([prompt], greedy(9, ignore_eos=True))
        proposals.every.clear()
        assert rig.tokens([prompt], greedy(9, ignore_eos=True)) == first
    base = (len(prompt) - 1) // size * size
    assert proposals.every
    for query, tokens, draft in proposals.every:
        hidden = final_hidden(folder, tokens)[base:-1]
        step, table = partial(eagle_features, tensors), weights["model.embed_tokens.weight"]
        logits = weights["lm_head.weight"].matmul
        assert draft == drafts(step, logits, table, tokens[base:], hidden, query.max_drafts)


def test_perfect_head_saves_steps(tmp_path: Path) -> None:
    """A head that computes what the model of one layer computes: all drafts are accepted."""
    folder = markov_llama(tmp_path / "model")
    weights, tensors = model_weights(folder), eagle_tensors(bias=False)
    layer = "model.layers.0."
    tensors |= {name.removeprefix("model."): tensor for name, tensor in weights.items() if name.startswith(layer)}
    del tensors["layers.0.input_layernorm.weight"]
    tensors["fc.weight"] = torch.eye(WIDTH, 2 * WIDTH)
    with drafted_rig(folder, "eagle", write_head(tmp_path / "head", EAGLE_CONFIG, tensors)) as (rig, proposals):
        found = rig.tokens([[65, 66, 67]], greedy(26, ignore_eos=True))
        assert rig.engine.stats().num_steps_total == 1 + 5  # the first gives a token, the others 5 each
    with rig_of(folder) as rig:
        assert rig.tokens([[65, 66, 67]], greedy(26, ignore_eos=True)) == found
    assert proposals.num_drafted == 20


BAD: list[tuple[str, dict[str, Tensor | None], dict[str, Any], str]] = [
    ("fc", {"fc.weight": torch.ones(WIDTH, 3 * WIDTH)}, {}, r"'fc.weight' has shape \[64, 192\].*\[64, 128\]"),
    ("missing", {"layers.0.mlp.up_proj.weight": None}, {}, "lacks 'layers.0.mlp.up_proj.weight'"),
    ("nan", {"fc.bias": torch.full((WIDTH,), torch.nan)}, {}, "'fc.bias' contains NaN"),
    ("integers", {"fc.bias": torch.ones(WIDTH, dtype=torch.int64)}, {}, "'fc.bias' does not hold floating-point"),
    ("table", {"embed_tokens.weight": torch.ones(9, WIDTH)}, {}, "'embed_tokens.weight' has shape"),
    ("other", {"visual.weight": torch.ones(3)}, {}, "'visual.weight'"),
    ("width", {}, {"hidden_size": 128}, "`hidden_size` is 128, but that of the model tiny is 64"),
    ("vocabulary", {}, {"vocab_size": 32000}, "`vocab_size` is 32000"),
    ("heads", {}, {"num_attention_heads": None}, "does not describe a decoder block"),
    ("no width", {}, {"hidden_size": None}, "does not say `hidden_size`"),
    ("blocks", {}, {"num_hidden_layers": 99}, "`num_hidden_layers` is 99"),
    ("act", {}, {"hidden_act": "evil"}, "activation 'evil'"),
    ("inner", {}, {"intermediate_size": 1 << 40}, "intermediate_size"),
]


@pytest.mark.parametrize(("changes", "config", "message"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_heads_that_do_not_fit_are_refused(
    tmp_path: Path, folder: Path, changes: dict[str, Tensor | None], config: dict[str, Any], message: str
) -> None:
    tensors = {name: t for name, t in {**eagle_tensors(), **changes}.items() if t is not None}
    given = {key: value for key, value in {**EAGLE_CONFIG, **config}.items() if value is not None}
    head = write_head(tmp_path / "head", given, tensors)
    with pytest.raises(ConfigError, match=message), drafted_rig(folder, "eagle", head):
        pass


BAD3: list[tuple[str, dict[str, Tensor | None], dict[str, Any], str]] = [
    ("blocks", {}, {"eagle_aux_hidden_state_layer_ids": [0, 9]}, "the model has 2"),
    ("few", {}, {}, r"\(2, 1, -1\); the model has 2"),
    ("no map", {"d2t": None}, READ, "lacks the tensor 'd2t'"),
    ("map", {"d2t": torch.full((200,), 99)}, READ, "'d2t' names tokens outside"),
    ("floats", {"d2t": torch.ones(200)}, READ, "'d2t' must hold 200 integers"),
    ("head", {"lm_head.weight": torch.ones(900, 64)}, READ, "from 1 to 264"),
]


@pytest.mark.parametrize(("changes", "config", "message"), [each[1:] for each in BAD3], ids=[each[0] for each in BAD3])
def test_heads_of_eagle3_that_do_not_fit_are_refused(
    tmp_path: Path, folder: Path, changes: dict[str, Tensor | None], config: dict[str, Any], message: str
) -> None:
    tensors = {name: t for name, t in {**eagle3_tensors(), **changes}.items() if t is not None}
    head = write_head(tmp_path / "head", {**EAGLE_CONFIG, **config}, tensors)
    with pytest.raises(ConfigError, match=message), drafted_rig(folder, "eagle3", head):
        pass
