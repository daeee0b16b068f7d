"""MiniMax M2: sigmoid routing with a correction, and one norm over all heads of queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ExpertRouter,
    RMSNorm,
    Routing,
    WeightsMapper,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures

NAMES = (
    names.LLAMA
    | names.MIXTRAL
    | WeightsMapper(
        (
            ("block_sparse_moe.e_score_correction_bias", "mlp.routing.correction"),
            ("mlp.e_score_correction_bias", "mlp.routing.correction"),
        )
    )
)


def decoder(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps), qk_norm_wide=True)
    router = ExpertRouter(Routing(c.num_experts_per_tok, "sigmoid", renormalize=True), corrected=True)
    return with_mixtures(normed, mixture(c, c.intermediate_size, c.num_local_experts, router))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """MiniMax M2 as a language model."""
    yield Architecture(name="MiniMaxM2ForCausalLM", decoder=decoder, names=NAMES)
