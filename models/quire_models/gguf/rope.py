"""Rotary embeddings of a GGUF model, as `rope_parameters` of transformers.

llama.cpp's converter writes Llama 3's scaling, whose settings GGUF has no keys for, as one divisor per frequency
(tensor `rope_freqs.weight`), and LongRoPE as two (`rope_factors_short.weight`, `rope_factors_long.weight`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from quire_models.gguf.file.metadata import Metadata

Factors: TypeAlias = Callable[[str], "Sequence[float] | None"]
"""A function that reads the numbers of a tensor such as `rope_freqs.weight`; None if the model lacks it."""

DEFAULT_THETA = 10_000.0
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Settings of every Llama 3; only the factor differs."""


def rope_parameters(metadata: Metadata, head_dim: int, factors: Factors) -> dict[str, Any]:
    """The parameters of a model with one rotary embedding. Raises CheckpointError for a scaling that is not known."""
    parameters: dict[str, Any] = {"rope_theta": metadata.number("rope.freq_base", DEFAULT_THETA)}
    rotated = metadata.size("rope.dimension_count", head_dim)
    if not 0 < rotated <= head_dim or rotated % 2:
        raise metadata.error("rope.dimension_count", f"must be even and at most {head_dim}, got {rotated}")
    if rotated != head_dim:
        parameters["partial_rotary_factor"] = rotated / head_dim
    return parameters | _scaling(metadata, parameters["rope_theta"], rotated, factors)


def _scaling(metadata: Metadata, theta: float, rotated: int, factors: Factors) -> dict[str, Any]:
    kind = metadata.text("rope.scaling.type")
    short, long = factors("rope_factors_short.weight"), factors("rope_factors_long.weight")
    if short is not None and long is not None:
        return _longrope(metadata, short, long)
    divisors = factors("rope_freqs.weight")
    if divisors is not None:
        return _divided(metadata, theta, rotated, divisors)
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(metadata)
    if kind in (None, "none"):
        return {"rope_type": "default"}
    raise metadata.error("rope.scaling.type", f"is {kind!r:.40}; without tables of factors, linear and yarn are known")


def _yarn(metadata: Metadata) -> dict[str, Any]:
    parameters = {
        "rope_type": "yarn",
        "factor": metadata.number("rope.scaling.factor"),
        "original_max_position_embeddings": metadata.size("rope.scaling.original_context_length"),
    }
    for ours, theirs in (
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if f"rope.scaling.{theirs}" in metadata:
            parameters[ours] = metadata.number(f"rope.scaling.{theirs}")
    return parameters


def _longrope(metadata: Metadata, short: Sequence[float], long: Sequence[float]) -> dict[str, Any]:
    length = metadata.size("context_length")
    original = metadata.size("rope.scaling.original_context_length", length)
    if not original:
        raise metadata.error("rope.scaling.original_context_length", "must be above 0")
    parameters = {
        "rope_type": "longrope",
        "short_factor": list(short),
        "long_factor": list(long),
        "original_max_position_embeddings": original,
        "factor": length / original,
    }
    if "rope.scaling.attn_factor" in metadata:
        parameters["attention_factor"] = metadata.number("rope.scaling.attn_factor")
    return parameters


def _divided(metadata: Metadata, theta: float, rotated: int, divisors: Sequence[float]) -> dict[str, Any]:
    """Llama 3's scaling if its usual settings give these divisors of frequencies; else LongRoPE with the divisors."""
    factor = round(max(divisors), 4)
    expected = _llama3_divisors(theta, rotated, factor)
    if len(expected) == len(divisors) and all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, divisors, strict=True)
    ):
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    return {
        "rope_type": "longrope",
        "short_factor": list(divisors),
        "long_factor": list(divisors),
        "original_max_position_embeddings": metadata.size("context_length"),
        "factor": 1.0,
        "attention_factor": 1.0,
    }


def _llama3_divisors(theta: float, rotated: int, factor: float) -> list[float]:
    """What Llama 3's scaling divides the frequencies by (as `_compute_llama3_parameters` of transformers)."""
    low, high, original = _LLAMA3.values()
    divisors = []
    for index in range(0, rotated, 2):
        wavelength = 2 * math.pi * theta ** (index / rotated)
        smooth = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors
