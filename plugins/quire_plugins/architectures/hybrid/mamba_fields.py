"""The Mamba-2 of hybrids, by the config fields that begin with `mamba_`. This module is not a plugin."""

from __future__ import annotations

from typing import Any

from quire.plugin import WeightsMapper, config_fields as configs, weight_names as names
from quire_models.parts.recurrent.mamba import GatedNorm, Mamba2

NAMES = names.LLAMA | WeightsMapper(
    (
        ("mamba", "attn"),
        ("conv1d", "conv"),
        ("out_proj", "o"),
        ("feed_forward", "mlp"),
        ("pre_ff_layernorm", "mlp_in"),
        ("model.final_layernorm", "norm"),
    )
)
"""Tensors of Bamba, and of others whose mixer is named `mamba` and whose MLP is named `feed_forward`."""


def mamba2(c: Any, norm: GatedNorm | None, **changes: Any) -> Mamba2:
    """The mixer that a config describes. changes: fields of the part that differ."""
    fields = {
        "heads": c.mamba_n_heads,
        "head_dim": c.mamba_d_head,
        "state_size": c.mamba_d_state,
        "groups": c.mamba_n_groups,
        "kernel": c.mamba_d_conv,
        "act": configs.act(c.hidden_act),
        "conv_bias": c.mamba_conv_bias,
        "bias": c.mamba_proj_bias,
        "out_bias": c.mamba_proj_bias,
        "norm": norm,
        "limits": tuple(c.time_step_limit or (0.0, float("inf"))),
    }
    return Mamba2(**{**fields, **changes})
