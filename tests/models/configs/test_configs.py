"""What parts read in config.json."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import CheckpointError
from quire_models import Rope
from quire_models.loading import config_fields as configs
from quire_models.parts.rope_config import Yarn


def test_rope_reads_newer_older_and_nested_configs() -> None:
    newer = SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    older = SimpleNamespace(rope_theta=5e5, rope_scaling=None)
    bare = SimpleNamespace(hidden_size=4)
    nested = SimpleNamespace(rope_parameters={"local": {"rope_theta": 1.0}, "global": {"rope_theta": 2.0}})
    assert Rope.from_config(newer, 64) == Rope.from_config(older, 64) == Rope(64, 5e5)
    assert Rope.from_config(bare, 64) == Rope(64, 1e4)
    assert Rope.from_config(nested, 8, "global").theta == 2.0
    old_yarn = SimpleNamespace(
        rope_theta=1e4,
        max_position_embeddings=64,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    )
    assert Rope.from_config(old_yarn, 8).scaling == Yarn(factor=4.0, original_len=16)
    partial = SimpleNamespace(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.75})
    assert Rope.from_config(partial, 64).dim == 48


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"rope_type": "spiral"}, "'spiral'; supported are default, dynamic"),
        ({"rope_type": "linear"}, "lacks its setting 'factor'"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused_with_a_sentence(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        Rope.from_config(SimpleNamespace(rope_parameters={"rope_theta": 1e4, **parameters}), 8)


def test_configs_leave_out_fields_and_name_activations_in_their_own_way() -> None:
    config = SimpleNamespace(hidden_size=64, num_attention_heads=4, head_dim=None)
    assert (configs.head_dim(config), configs.kv_heads(config)) == (16, 4)
    assert configs.act("gelu_pytorch_tanh") == configs.act("gelu_new") == "gelu_tanh"
    with pytest.raises(CheckpointError, match=r"'snake'; supported are gelu"):
        configs.act("snake")
