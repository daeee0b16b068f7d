"""Medusa heads draft what a plain implementation computes from the same hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import greedy, related_prompts, rig_of
from head_rig import Tensors, drafted_rig, final_hidden, markov_llama, next_tokens, write_head
from random_heads import WIDTH, medusa_tensors
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.engine.sampling.rng import uniforms
from quire.errors import ConfigError
from quire.params.sampling import SamplingParams
from quire_testing.tiny import VOCAB_SIZE, tiny_llama

HEADS = 3
PROMPTS = related_prompts(6, seed=2)


def with_vllm_names(heads: Tensors, blocks: int) -> Tensors:
    found: Tensors = {}
    for name, tensor in heads.items():
        head, part, *rest = name.split(".")
        ours = f"lm_heads.{head}.weight" if int(part) == blocks else f"blocks.{head}.layers.{part}.{rest[-1]}"
        found[ours] = tensor
    return found


def oracle(heads: Tensors, blocks: int, hidden: Tensor) -> Tensor:
    """Logits of each head, [heads, vocab]."""
    every = []
    for head in range(HEADS):
        x = hidden
        for block in range(blocks):
            weight, bias = (heads.get(f"{head}.{block}.linear.{kind}") for kind in ("weight", "bias"))
            assert weight is not None
            y = weight @ x + (0 if bias is None else bias)
            x = x + y * torch.sigmoid(y)
        every.append(heads[f"{head}.{blocks}.weight"] @ x)
    return torch.stack(every)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


FORMATS: list[tuple[str, dict[str, Any], int, bool]] = [
    ("medusa_lm_head.pt", {"medusa_num_heads": HEADS, "medusa_num_layers": 1}, 1, True),
    ("medusa_lm_head.safetensors", {"medusa_num_heads": HEADS, "medusa_num_layers": 2}, 2, True),
    ("model.safetensors", {"model_type": "medusa", "num_heads": HEADS, "vocab_size": VOCAB_SIZE}, 1, False),
]


@pytest.mark.parametrize(("file", "config", "blocks", "is_published"), FORMATS)
def test_drafts_are_those_of_the_oracle(
    tmp_path: Path, folder: Path, file: str, config: dict[str, Any], blocks: int, is_published: bool
) -> None:
    heads = medusa_tensors(HEADS, blocks, is_published)
    stored = heads if is_published else with_vllm_names(heads, blocks)
    with drafted_rig(folder, "medusa", write_head(tmp_path / "head", config, stored, file)) as (rig, proposals):
        rig.tokens(PROMPTS, greedy(6, ignore_eos=True))
    assert len(proposals.every) > 20
    for query, tokens, draft in proposals.every:
        expected = oracle(heads, blocks, final_hidden(folder, tokens)[-2]).argmax(-1).tolist()
        assert draft == expected[: query.max_drafts]


def test_seeded_drafts_use_the_random_numbers_of_the_model(tmp_path: Path, folder: Path) -> None:
    heads = medusa_tensors(HEADS)
    params = SamplingParams(temperature=0.8, seed=11, max_tokens=8, ignore_eos=True)
    head = write_head(tmp_path / "head", {}, heads, "medusa_lm_head.pt")
    with drafted_rig(folder, "medusa", head, wants_probs=True) as (rig, found):
        rig.tokens(PROMPTS[:3], params)
    assert found.num_drafted > 30
    for (query, tokens, draft), probs in zip(found.every, found.probs, strict=True):
        logits = oracle(heads, 1, final_hidden(folder, tokens)[-2])
        sums = torch.softmax(logits.double() / 0.8, -1).cumsum(-1)
        count = len(tokens) - query.prompt_len + np.arange(HEADS)
        drawn = torch.from_numpy(uniforms(np.full(HEADS, query.seed, np.uint64), count))
        assert draft == (sums <= drawn[:, None]).sum(-1).tolist()[: query.max_drafts]
        assert probs is not None
        torch.testing.assert_close(probs, torch.softmax(logits / 0.8, -1)[: len(draft)], rtol=1e-3, atol=1e-6)


def test_shared_head_is_applied_to_all(tmp_path: Path, folder: Path) -> None:
    heads = medusa_tensors(HEADS)
    shared = heads["0.1.weight"]
    stored = {name: t for name, t in with_vllm_names(heads, 1).items() if not name.startswith("lm_heads")}
    heads |= {f"{head}.1.weight": shared for head in range(HEADS)}
    folder_of_head = write_head(tmp_path / "head", {"original_lm_head": True}, stored | {"lm_head.weight": shared})
    with drafted_rig(folder, "medusa", folder_of_head) as (rig, proposals):
        rig.tokens(PROMPTS[:2], greedy(6, ignore_eos=True))
    for query, tokens, draft in proposals.every:
        expected = oracle(heads, 1, final_hidden(folder, tokens)[-2]).argmax(-1).tolist()
        assert draft == expected[: query.max_drafts]


def test_heads_without_projections_use_the_lm_head_of_the_model(tmp_path: Path, folder: Path) -> None:
    heads = medusa_tensors(HEADS)
    stored = {name: tensor for name, tensor in heads.items() if ".linear." in name}
    heads |= {
        f"{head}.1.weight": AutoModelForCausalLM.from_pretrained(folder).lm_head.weight.detach()
        for head in range(HEADS)
    }
    head = write_head(tmp_path / "head", {"original_lm_head": True}, stored, "medusa_lm_head.safetensors")
    with drafted_rig(folder, "medusa", head) as (rig, proposals):
        rig.tokens(PROMPTS[:3], greedy(6, ignore_eos=True))
    assert proposals.num_drafted > 20
    for query, tokens, draft in proposals.every:
        expected = oracle(heads, 1, final_hidden(folder, tokens)[-2]).argmax(-1).tolist()
        assert draft == expected[: query.max_drafts]


def spoil(name: str, tensor: Tensor | None) -> Tensors:
    heads = medusa_tensors(HEADS)
    if tensor is None:
        del heads[name]
    else:
        heads[name] = tensor
    return heads


BAD: list[tuple[str, Tensors, dict[str, Any], str]] = [
    ("narrow", spoil("1.0.linear.weight", torch.ones(8, 8)), {}, r"'1.0.linear.weight' has shape \[8, 8\]"),
    ("vocabulary", spoil("0.1.weight", torch.ones(9, WIDTH)), {}, r"'0.1.weight' has shape \[9, 64\].*\[264, 64\]"),
    ("missing", spoil("1.0.linear.weight", None), {}, "lacks the tensor '1.0.linear.weight'"),
    ("no head", spoil("2.1.weight", None), {}, "lacks a projection to the vocabulary for the head 2"),
    ("nan", spoil("2.1.weight", torch.full((VOCAB_SIZE, WIDTH), torch.nan)), {}, "'2.1.weight' contains NaN"),
    ("integers", spoil("2.1.weight", torch.ones(VOCAB_SIZE, WIDTH, dtype=torch.int64)), {}, "floating-point"),
    ("other", spoil("model.norm.weight", torch.ones(WIDTH)), {}, "'model.norm.weight' is not a tensor of Medusa heads"),
    ("gap", spoil("5.0.linear.weight", torch.ones(WIDTH, WIDTH)), {}, "lacks a projection .* head 5"),
    ("block", spoil("0.7.linear.weight", torch.ones(WIDTH, WIDTH)), {}, "blocks of the head 0"),
    ("width", medusa_tensors(HEADS), {"hidden_size": 128}, "`hidden_size` is 128"),
    ("count", medusa_tensors(HEADS), {"medusa_num_heads": 2}, "`medusa_num_heads` is 2"),
    ("size", medusa_tensors(HEADS), {"hidden_size": 10**30}, "hidden_size"),
]


@pytest.mark.parametrize(("tensors", "config", "message"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_heads_that_do_not_fit_are_refused(
    tmp_path: Path, folder: Path, tensors: Tensors, config: dict[str, Any], message: str
) -> None:
    head = write_head(tmp_path / "head", config, tensors, "medusa_lm_head.safetensors")
    with pytest.raises(ConfigError, match=message), drafted_rig(folder, "medusa", head):
        pass


def test_files_that_are_none_are_refused(tmp_path: Path, folder: Path) -> None:
    for model in (None, "", str(tmp_path / "absent"), 3):
        config = {"method": "medusa", "model": model}
        with (
            pytest.raises(ConfigError, match="`model` of --speculative-config"),
            rig_of(folder, speculative_config=config),
        ):
            pass
    head = write_head(tmp_path / "head", {}, medusa_tensors(HEADS), "medusa_lm_head.safetensors")
    file = head / "medusa_lm_head.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="truncated or corrupt"), drafted_rig(folder, "medusa", head):
        pass


def follow(successors: list[int], first: int, count: int) -> list[int]:
    found = [first]
    while len(found) < count:
        found.append(successors[found[-1]])
    return found


def test_perfect_heads_save_steps(tmp_path: Path) -> None:
    """Heads that map the hidden states of a text to the tokens that follow: all drafts are accepted."""
    folder = markov_llama(tmp_path / "model")
    successors = next_tokens(folder)
    text = follow(successors, 65, 40)
    tokens = sorted(set(text))
    rows = torch.cat([final_hidden(folder, [token]) for token in tokens])
    heads: Tensors = {}
    for head in range(HEADS):
        later = [follow(successors, token, head + 3)[-1] for token in tokens]
        targets = torch.nn.functional.one_hot(torch.tensor(later), VOCAB_SIZE).float()
        heads[f"{head}.0.linear.weight"] = torch.zeros(WIDTH, WIDTH)
        heads[f"{head}.1.weight"] = torch.linalg.lstsq(rows, targets).solution.T
    with drafted_rig(folder, "medusa", write_head(tmp_path / "head", {}, heads, "medusa_lm_head.pt")) as (rig, _):
        assert rig.tokens([[65]], greedy(29, ignore_eos=True)) == [text[1:30]]
        assert rig.engine.stats().num_steps_total == 1 + 7  # the first gives a token, the others 4 each
