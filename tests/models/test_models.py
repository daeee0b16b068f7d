"""Models against transformers on awkward pages, at lengths that scaled rotary embeddings notice, from unusual files.

What holds for every family is tested in tests/families/.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from tiny_architectures import AWKWARD, CASES, LENGTH_CASES, MIXED, architectures, compare, pair, prompts
from torch import Tensor

from quire.records import OpQuery
from quire_kernels import select
from quire_models.testing import ChunkSpec, build, load_state_dict_into, run_tokens


@pytest.mark.parametrize("case_id", CASES)
def test_a_mixed_batch_on_small_pages_has_the_logits_of_transformers(case_id: str) -> None:
    both, seqs = pair(case_id, page_size=3), prompts(23, 9, 30, 1)
    got = run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], MIXED, page_size=3)
    compare(got, [both.logits(tokens) for tokens in seqs])


@pytest.mark.parametrize("case_id", ["llama", "gemma2", "qwen3 moe", "opt"])
def test_reference_ops_give_the_same_logits(case_id: str) -> None:
    both, seqs = pair(case_id, reference=True), prompts(23, 9, 30, 1)
    got = run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], MIXED)
    compare(got, [both.logits(tokens) for tokens in seqs])


# --- rotary embeddings that depend on length: original length 16, or 64 for the dynamic one ----------------


@pytest.mark.parametrize("case_id", LENGTH_CASES)
@pytest.mark.parametrize("length", [9, 16, 17, 40, 70])
def test_prompts_within_and_over_the_original_length_have_the_logits_of_transformers(case_id: str, length: int) -> None:
    both, [tokens] = pair(case_id), prompts(length)
    both.logits(tokens[:1])  # a short prompt makes transformers forget the length of the one before
    compare(run_tokens(both.ours, both.decoder, [tokens.tolist()], AWKWARD[:3]), [both.logits(tokens)])


@pytest.mark.parametrize("case_id", LENGTH_CASES)
def test_a_long_neighbour_changes_nothing_for_a_short_prompt(case_id: str) -> None:
    both, seqs = pair(case_id), prompts(9, 70)
    want = []
    for tokens in seqs:
        both.logits(tokens[:1])
        want.append(both.logits(tokens))
    steps = [[ChunkSpec(0, 3), ChunkSpec(1, 40)], [ChunkSpec(1, 20), ChunkSpec(0, 6)]]
    compare(run_tokens(both.ours, both.decoder, [tokens.tolist() for tokens in seqs], steps), want)


@pytest.mark.parametrize("case_id", ["dynamic", "longrope"])
@pytest.mark.parametrize("prompt_len", [10, 62, 66])
def test_tokens_generated_over_the_original_length_have_the_logits_of_transformers(
    case_id: str, prompt_len: int
) -> None:
    both, [tokens] = pair(case_id), prompts(70)
    both.logits(tokens[:1])
    want = []
    with torch.no_grad():
        out = both.theirs(tokens[None, :prompt_len], use_cache=True)
        want.append(out.logits[0])
        for token in tokens[prompt_len:]:
            out = both.theirs(token[None, None], past_key_values=out.past_key_values, use_cache=True)
            want.append(out.logits[0])
    steps = [[ChunkSpec(0, prompt_len)], *([ChunkSpec(0, 1)] for _ in range(70 - prompt_len))]
    got = run_tokens(both.ours, both.decoder, [tokens.tolist()], steps, prompt_lens=[prompt_len])
    compare(got, [torch.cat(want)])


# --- checkpoints as they lie on disk --------------------------------------------------------------------


def per_expert(state: Mapping[str, Tensor], mixture: str, gate: str, up: str, down: str) -> dict[str, Tensor]:
    """Stacked experts as one tensor each, the layout of published checkpoints."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        prefix, _, kind = name.partition(".mlp.experts.")
        renamed = name.replace(".mlp.gate.", f".{mixture}.gate.")
        if not kind:
            found[renamed] = tensor
        for expert, matrix in enumerate(tensor if kind else ()):
            path = f"{prefix}.{mixture}.experts.{expert}"
            if kind == "gate_up_proj":
                found[f"{path}.{gate}.weight"], found[f"{path}.{up}.weight"] = matrix.chunk(2)
            else:
                found[f"{path}.{down}.weight"] = matrix
    return found


@pytest.mark.parametrize(
    ("case_id", "layout"),
    [
        ("mixtral", ("block_sparse_moe", "w1", "w3", "w2")),
        ("qwen3 moe", ("mlp", "gate_proj", "up_proj", "down_proj")),
    ],
)
def test_experts_load_one_by_one_as_well_as_stacked(case_id: str, layout: tuple[str, str, str, str]) -> None:
    both = pair(case_id)
    again = build(both.decoder, select.reference())
    state = per_expert(both.theirs.state_dict(), *layout)
    assert len(state) > len(both.theirs.state_dict())
    load_state_dict_into(again, both.decoder, architectures()[CASES[case_id].architecture].names, state)
    for mine, stacked in zip(again.parameters(), both.ours.parameters(), strict=True):
        assert torch.equal(mine, stacked)


def test_gpt2_loads_as_it_was_published_without_prefix_and_with_masks() -> None:
    both = pair("gpt2")
    published = {name.removeprefix("transformer."): tensor for name, tensor in both.theirs.state_dict().items()}
    published |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(2)}
    again = build(both.decoder, select.reference())
    load_state_dict_into(again, both.decoder, architectures()["GPT2LMHeadModel"].names, published)
    for mine, prefixed in zip(again.parameters(), both.ours.parameters(), strict=True):
        assert torch.equal(mine, prefixed)


# --- what the seams promise -------------------------------------------------------------------------------


def test_media_rows_replace_embeddings() -> None:
    both, [tokens] = pair("llama"), prompts(12)
    from quire_models.step.forward_batch import MediaRows
    from quire_models.testing import ModelDriver

    driver = ModelDriver(both.ours, both.decoder, [tokens.tolist()])
    rows = torch.randn(3, 48)
    fwd = driver.forward([ChunkSpec(0, 12)])
    fwd.media = MediaRows(torch.tensor([4, 5, 6]), rows)
    embeddings = both.theirs.get_input_embeddings()(tokens).detach()
    embeddings[4:7] = rows
    with torch.no_grad():
        want = both.theirs(inputs_embeds=embeddings[None]).logits[0]
    compare([both.ours.logits(both.ours(fwd))], [want])


def test_bfloat16_stays_near_transformers() -> None:
    both, [tokens] = pair("llama"), prompts(29)
    architecture = architectures()["LlamaForCausalLM"]
    ours = build(both.decoder, select.choose(OpQuery("cpu", "bfloat16")), torch.bfloat16)
    load_state_dict_into(ours, both.decoder, architecture.names, both.theirs.state_dict())
    [got] = run_tokens(ours, both.decoder, [tokens.tolist()], AWKWARD)
    want = both.logits(tokens)
    assert (got - want).abs().max() < 0.05 * want.abs().max()
