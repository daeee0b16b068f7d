"""Decides whether the steps of a model are launched while those before them run."""

from __future__ import annotations

from quire.engine.loading.load import LoadedModel
from quire.engine.speculation.speculation import Speculation
from quire.settings.model_config import ModelConfig


def may_overlap(loaded: LoadedModel, config: ModelConfig, speculation: Speculation) -> bool:
    """Whether the device computes beside the host, and a step needs no more of the one before than sampled tokens."""
    return loaded.device.type == "cuda" and has_independent_steps(loaded, config, speculation)


def num_divisions(loaded: LoadedModel, config: ModelConfig, speculation: Speculation) -> int:
    """Plans among which running seqs are divided, so that all stages of a model compute at the same time."""
    return config.pipeline_parallel_size if has_independent_steps(loaded, config, speculation) else 1


def has_independent_steps(loaded: LoadedModel, config: ModelConfig, speculation: Speculation) -> bool:
    """Whether a step can be planned before the results of the one before are known."""
    decoder = loaded.decoder
    only_decodes = decoder.has_lm_head and not decoder.non_causal and decoder.encoder_input is None
    has_state = any(shape is not None for shape in decoder.state_shapes)
    if has_state and config.pipeline_parallel_size > 1:
        return False
    return only_decodes and not config.batch_invariant and not speculation.is_used
