"""Architectures of transformers at tiny sizes, drawn from those without a plugin, for the fallback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import hybrid_cases
import torch
import transformers
from family_case import FamilyCase
from hybrid_cases import OFTEN
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.hooks import registry
from quire_plugins.transformers_fallback.architecture import describe
from quire_plugins.transformers_fallback.model_class import ModelClass
from quire_plugins.transformers_fallback.tracing import trace
from quire_testing.tiny import SIZES, reference_model

MORE_SIZES = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 9,
    "first_k_dense_replace": 1,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
}
"""Config values that some architectures have, beside those of `SIZES`."""

MAX_PARAMETERS = 1_000_000

FORCED = {"model_impl": "transformers"}

ROUGH = frozenset({"HrmTextForCausalLM"})
"""Models that apply their layers many times, so that rounding exceeds the tolerance of the checks."""

NOT_ADAPTED = ("lm_head", "output_projection", "embed_out", "gate", "router")


def without_plugin() -> list[str]:
    """Names of causal language models that no bundled plugin builds."""
    names = {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}
    return sorted(names - ROUGH - set(registry.load(None).by_hook("quire_architectures")))


def tiny_case(name: str) -> FamilyCase | None:
    """The case of an architecture; None if its config cannot be made tiny, or if the fallback refuses it."""
    cls = getattr(transformers, name)
    try:
        known = cls.config_class()
        sizes = {key: value for key, value in MORE_SIZES.items() if hasattr(known, key)}
        config = cls.config_class(**{k: v for k, v in {**SIZES, **sizes}.items() if hasattr(known, k)}, pad_token_id=0)
        with torch.device("meta"), no_init_weights():
            model = cls(config)
        size = sum(parameter.numel() for parameter in model.parameters())
        if size > MAX_PARAMETERS:
            return None
        found = ModelClass(name, cls, config)
        part = describe(found, trace(found))
        reference_model(name, **sizes)
    except Exception:  # refused, or the tiny sizes do not fit the config or the modules of this architecture
        return None
    if not part.has_lm_head:
        return None
    settings = FORCED | (OFTEN if part.traced.states else {})
    return FamilyCase(name, sizes, lora=_linear_names(model), settings=settings)


@cache
def drawn_with_state(seed: int, count: int) -> tuple[FamilyCase, ...]:
    """`count` architectures that keep state: hybrids, which plugins have too, built by the fallback."""
    cases = [replace(case, settings=FORCED | case.settings, variants={}) for case in hybrid_cases.CASES]
    return tuple(random.Random(seed).sample(cases, count))


@cache
def drawn(seed: int, count: int) -> tuple[FamilyCase, ...]:
    """`count` architectures without a plugin, in the order of the draw."""
    return tuple(_draw(seed, count))


def _draw(seed: int, count: int) -> Iterator[FamilyCase]:
    names = without_plugin()
    random.Random(seed).shuffle(names)
    for name in names:
        case = tiny_case(name) if count else None
        if case is not None:
            count -= 1
            yield case


def _linear_names(model: Any) -> tuple[str, ...]:
    """Names of all linear layers, without heads and routers."""
    modules = [path for path, module in model.named_modules() if type(module) is torch.nn.Linear]
    return tuple(sorted({path.rpartition(".")[2] for path in modules} - set(NOT_ADAPTED)))
