"""Every family's tiny model on two, three and eight ranks, and in two stages: logits and greedy tokens of one
process, and each rank has its part of the weights. Ranks are threads here, which exchange numbers as processes do.
"""

from pathlib import Path
from random import Random

import attention_cases
import dense_cases
import hybrid_cases
import latent_cases
import moe_cases
import pytest
import torch
from divided_model import divided, load, logits, staged
from engine_rig import random_ids
from family_case import FamilyCase
from family_checks import reference
from wide_case import wide

from quire_testing.tiny import byte_tokenizer, save

CASES = [
    *dense_cases.CASES,
    *attention_cases.CASES,
    *moe_cases.CASES,
    *latent_cases.CASES,
    *hybrid_cases.CASES,
]
SEQS = [random_ids(Random(1), length) for length in (31, 12, 9)]
TOLERANCE = 5e-5

WHOLE_PARTS = {
    "Gemma3nForCausalLM": "its activation needs all columns, and its tables for the blocks are whole",
    "Zamba2ForCausalLM": "its shared blocks are whole",
    "Gemma4ForCausalLM": "its tables for the blocks are whole",
    "Lfm2ForCausalLM": "its short convolutions are whole",
    "Lfm2MoeForCausalLM": "its short convolutions are whole",
    "GPTNeoForCausalLM": "the table of positions is whole, and large in a tiny model",
    "GPTBigCodeForCausalLM": "the table of positions is whole, and large in a tiny model",
    "BioGptForCausalLM": "the table of positions is whole, and large in a tiny model",
    "GPT2LMHeadModel": "the table of positions is whole, and large in a tiny model",
    "OPTForCausalLM": "the table of positions is whole, and large in a tiny model",
}
"""Models of which a rank has more than 0.6 of the weights at two ranks, and why."""


EIGHT = 8
"""Ranks that have one or two of twelve heads, and of which several have one of three key-value heads."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_compute_what_one_process_computes(case: FamilyCase, tmp_path: Path) -> None:
    save(reference(wide(case), {}), tmp_path)
    byte_tokenizer(tmp_path)
    settings = {name: value for name, value in case.settings.items() if name != "max_model_len"}
    whole = load(tmp_path, **settings)
    wanted = logits(whole, SEQS)
    found, loaded = staged(tmp_path, 2, SEQS, **settings)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs), f"{case} in two stages"
    assert max(one.weight_bytes for one in loaded) < whole.weight_bytes
    few = 3 if CASES.index(case) % 4 == 3 else 2
    by_expert = case in moe_cases.CASES and CASES.index(case) % 2 == 0
    for size in (few, EIGHT):
        found, loaded = divided(tmp_path, size, SEQS, by_expert and size == few, **settings)
        for mine, theirs in zip(found, wanted, strict=True):
            worst = (mine - theirs).abs().max().item()
            assert worst < TOLERANCE, f"{case} on {size} ranks: logits differ by up to {worst:.2g}"
            assert torch.equal(mine.argmax(-1), theirs.argmax(-1)), f"{case} on {size} ranks: other greedy tokens"
        share = max(one.weight_bytes for one in loaded) / whole.weight_bytes
        assert share < 1
        if size == 2 and case.architecture not in WHOLE_PARTS:
            assert share <= 0.6, f"a rank of two has {share:.2f} of the weights"
