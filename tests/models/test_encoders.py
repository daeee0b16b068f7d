"""Every bundled encoder against transformers: tiny random weights in a folder, float32, prompts of mixed lengths.

A prompt's hidden states must not depend on the others of the step; heads give what transformers' heads give.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tiny_encoders import CASES, MODERN, close, expected, hidden, load, needs_cpp, pair, prompts, reloaded

from quire.records import OpQuery
from quire_kernels import reference, select
from quire_kernels.cpu.compiled.program import Program
from quire_testing.tiny import reference_model, save


@pytest.mark.parametrize("case_id", CASES)
def test_hidden_states_are_those_of_transformers(case_id: str) -> None:
    theirs, ours = pair(case_id)
    seqs = prompts()
    for got, tokens in zip(hidden(ours, seqs), seqs, strict=True):
        close(got, expected(theirs, tokens))


@pytest.mark.parametrize("case_id", ["bert", "roberta", "modernbert"])
def test_the_longest_prompts_are_right_too(case_id: str) -> None:
    theirs, ours = pair(case_id)
    seqs = prompts((512, 3, 200, 511))
    for got, tokens in zip(hidden(ours, seqs), seqs, strict=True):
        close(got, expected(theirs, tokens))


@needs_cpp
@pytest.mark.parametrize("case_id", ["bert", "xlm-roberta", "distilbert", "modernbert"])
def test_a_prompt_is_the_same_alone_and_among_others(case_id: str) -> None:
    _, ours = pair(case_id)
    seqs = prompts()
    for together, tokens in zip(hidden(ours, seqs), seqs, strict=True):
        assert torch.equal(hidden(ours, [tokens])[0], together)


@pytest.mark.parametrize("case_id", ["bert", "roberta classes"])
def test_token_types_distinguish_the_texts_of_a_pair(case_id: str) -> None:
    theirs, ours = pair(case_id)
    seqs = prompts((20, 9))
    types = [[0] * (len(tokens) // 2) + [1] * (len(tokens) - len(tokens) // 2) for tokens in seqs]
    for got, tokens, kinds in zip(hidden(ours, seqs, types), seqs, types, strict=True):
        close(got, expected(theirs, tokens, kinds))
    assert not torch.allclose(hidden(ours, seqs, types)[0], hidden(ours, seqs)[0])


def test_the_window_of_a_local_layer_ends_where_transformers_has_it_end() -> None:
    lengths = (4, 5, 6, 10, 70)
    for size in (2, 3, 8, 128):
        config = {**MODERN, "local_attention": size, "layer_types": ["sliding_attention"] * 4}
        theirs = reference_model("ModernBertModel", **config)
        with TemporaryDirectory() as folder:
            save(theirs, folder)
            ours = load(Path(folder), "ModernBertModel", select.choose(OpQuery("cpu", "float32")))
        seqs = prompts(lengths)
        for got, tokens in zip(hidden(ours, seqs), seqs, strict=True):
            close(got, expected(theirs, tokens))


@pytest.mark.parametrize("case_id", ["bert", "modernbert"])
def test_the_reference_gives_the_same(case_id: str) -> None:
    theirs, _ = pair(case_id)
    ours = reloaded(case_id, select.reference())
    seqs = prompts()
    for got, tokens in zip(hidden(ours, seqs), seqs, strict=True):
        close(got, expected(theirs, tokens))


@pytest.mark.parametrize("case_id", ["bert", "modernbert"])
def test_in_bfloat16_a_model_is_as_exact_as_transformers_is(case_id: str) -> None:
    theirs, _ = pair(case_id)
    ours = reloaded(case_id, select.choose(OpQuery("cpu", "bfloat16")), torch.bfloat16)
    halved, seqs = deepcopy(theirs).bfloat16(), prompts()
    want = torch.cat([expected(theirs, tokens) for tokens in seqs])
    their_error = (torch.cat([expected(halved, tokens).float() for tokens in seqs]) - want).norm()
    assert (torch.cat(hidden(ours, seqs)).float() - want).norm() <= 1.2 * their_error


# --- to the engine an encoder is a model without pages ------------------------------------------------------


def test_an_encoder_keeps_nothing_of_a_token_and_gives_no_logits() -> None:
    _, ours = pair("modernbert")
    part = ours.part
    assert (part.kv_shapes, part.kv_cache_variant(100), part.row_width) == ((), 0, 64)
    assert (part.has_lm_head, part.non_causal, part.tied) == (False, True, False)
    assert ours.module.head is None
    assert ours.module.embed_rows(torch.tensor([3, 1])).shape == (2, 64)


@needs_cpp
def test_all_blocks_of_an_encoder_are_one_program_and_give_what_they_give_one_by_one() -> None:
    for case_id in ("bert", "modernbert with biases"):
        ops = select.choose(OpQuery("cpu", "float32"))
        ours, plain = pair(case_id)[1], reloaded(case_id, replace(ops, fused_blocks=reference.fused_blocks))
        for got, want in zip(hidden(ours, prompts()), hidden(plain, prompts()), strict=True):
            assert torch.equal(got, want)
        assert [type(piece) for piece in ours.module._run.stages] == [Program]
