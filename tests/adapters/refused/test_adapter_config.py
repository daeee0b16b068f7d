"""An adapter_config.json that is broken, or that asks for what cannot be run, is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapter_drafts import Q, draft, refused
from lora_rig import Ours, random_seqs

from quire_adapters.peft.config import MAX_BYTES


def test_the_draft_itself_is_good(ours: Ours, tmp_path: Path) -> None:
    adapter = ours.lora.load("x", draft().write(tmp_path / "x"))
    seqs = random_seqs(1)
    found, plain = (ours.logits(seqs, [use])[0] for use in ({adapter: 1.0}, {}))
    assert (found - plain).abs().max() > 0.1
    assert (adapter.metadata.rank, adapter.metadata.targets) == (4, ("q_proj", "up_proj"))


# --- the config ----------------------------------------------------------------------------------------

VARIANTS = {
    "layer_replication": [[0, 1], [0, 2]],
    "trainable_token_indices": [1, 2],
    "alora_invocation_tokens": [1],
    "use_qalora": True,
    "arrow_config": {"top_k": 1},
    "use_bdlora": {"nblocks": 2},
    "kasa_config": {"beta": 1},
    "monteclora_config": {"num_samples": 2},
    "velora_config": {"num_groups": 2},
    "megatron_config": {"x": 1},
}


@pytest.mark.parametrize("field", VARIANTS)
def test_variants_that_cannot_be_run_are_named(ours: Ours, tmp_path: Path, field: str) -> None:
    bad = draft()
    bad.config[field] = VARIANTS[field]
    assert f"sets `{field}`, which is not supported: it" in refused(ours, bad.write(tmp_path / "x"))
    bad.config[field] = None
    ours.lora.load("x", bad.write(tmp_path / "x"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"r": 0}, "`r` must be a whole number of at least 1, not 0"),
        ({"r": "4"}, "`r` must be a whole number of at least 1, not '4'"),
        ({"r": True}, "`r` must be a whole number of at least 1, not True"),
        ({"r": 17}, "rank 17 for 'model.layers.0.self_attn.q_proj'; at most 16 is allowed (--max-lora-rank)"),
        ({"r": 8}, "(rank 8) and this model it should be [8, 64]"),
        ({"lora_alpha": "x"}, "`lora_alpha` must be a number from -1000000 to 1000000, not 'x'"),
        ({"bias": "some"}, "`bias` must be one of none, all, lora_only, not 'some'"),
        ({"rank_pattern": {"q_proj": 2}}, "by adapter_config.json (rank 2) and this model it should be [2, 64]"),
        ({"rank_pattern": {"(": 2}}, "a pattern that cannot be used, '(.*\\\\.)?(()'"),
        ({"alpha_pattern": {"q_proj": None}}, "`alpha_pattern` must be an object of numbers, or null"),
        ({"lora_alpha": 1e300}, "`lora_alpha` must be a number from -1000000 to 1000000, not 1e+300"),
        ({"target_modules": 3}, "`target_modules` must be a string or a list of strings, or null, not 3"),
        ({"target_parameters": "x"}, "`target_parameters` must be a list of strings, or null, not 'x'"),
        ({"layers_to_transform": ["x"]}, "`layers_to_transform` must be a whole number or a list of them"),
        ({"use_rslora": 1}, "`use_rslora` must be true or false, not 1"),
        ({"lora_alpha": float("nan")}, "`lora_alpha` must be a number from -1000000 to 1000000, not nan"),
        ({"target_modules": ["k_proj"]}, "'model.layers.0.self_attn.q_proj', which adapter_config.json does not list"),
        ({"target_modules": r".*\.q_proj"}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not list"),
        ({"target_modules": "("}, "a pattern that cannot be used, '('"),
        ({"exclude_modules": ["up_proj"]}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not list"),
        ({"exclude_modules": r".*layers\.1.*"}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not"),
        ({"layers_to_transform": 0}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not list"),
        ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, "which adapter_config.json does not list"),
        ({"use_dora": True}, f"lacks '{Q}.lora_magnitude_vector'"),
        ({"lora_bias": True}, f"lacks '{Q}.lora_B.bias'"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(ours: Ours, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    bad = draft()
    bad.config |= change
    assert said in refused(ours, bad.write(tmp_path / "x"))


def test_a_pattern_that_takes_for_ever_is_given_up(ours: Ours, tmp_path: Path) -> None:
    bad = draft()
    bad.config["target_modules"] = r"((.)|(..)|(...))*[A-Z]"
    assert "all patterns together took longer than 2 s" in refused(ours, bad.write(tmp_path / "x"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * (MAX_BYTES + 1), "has 1048577 bytes, and at most 1048576 are read"),
    ],
    ids=["empty", "cut off", "a list", "no text", "deep", "too long"],
)
def test_a_config_that_is_no_config_is_refused(ours: Ours, tmp_path: Path, text: bytes, said: str) -> None:
    folder = draft().write(tmp_path / "x")
    (folder / "adapter_config.json").write_bytes(text)
    assert said in refused(ours, folder)
