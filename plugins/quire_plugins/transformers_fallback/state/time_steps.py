"""Limits of Mamba-2's time steps, for texts computed in parts.

transformers' modules limit time steps in the scan of several tokens, and not in the update by one token, so that a text
would have other results token by token than at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NO_LIMITS = (0.0, float("inf"))


def limit_time_steps(module: Any) -> None:
    """Limit the time steps of a module in the output of its input matrix. Does nothing for a module without limits."""
    limits = tuple(getattr(module, "time_step_limit", None) or NO_LIMITS)
    if limits == NO_LIMITS:
        return
    low, high = torch.tensor(limits, dtype=torch.float64).expm1().log().tolist()  # before softplus

    def limit(_: Any, __: Any, made: Tensor) -> Tensor:
        bias = module.dt_bias.float()
        steps = made[..., -len(bias) :]  # after the gate, x, B and C
        factors = module.mup_vector[..., -len(bias) :] if hasattr(module, "mup_vector") else 1.0
        steps.copy_(steps.float().clamp((low - bias) / factors, (high - bias) / factors))
        return made

    module.in_proj.register_forward_hook(limit)
