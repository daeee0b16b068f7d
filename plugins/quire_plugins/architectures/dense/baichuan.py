"""Baichuan 7B and 13B: Llama with fused queries, keys and values; version 2 normalizes the rows of the LM head.

transformers has no class for the config, whose checkpoints bring code; its fields are those of Llama. The models of
13B have ALiBi instead of rotary embeddings, which their configs show by `model_max_length` in place of
`max_position_embeddings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Decoder,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.positions.alibi import bloom_slopes

if TYPE_CHECKING:
    from torch import Tensor

VOCAB_1 = 64_000
"""Vocabulary of version 1, whose LM head is used as it is."""


def decoder(c: Any) -> Decoder:
    if configs.optional(c, "max_position_embeddings", None) is None:
        return with_attention(llama.decoder(c), rope=None, alibi=bloom_slopes(c.num_attention_heads))
    return llama.decoder(c)


def weights(c: Any) -> WeightsMapper:
    """Names of the tensors; version 2 also has a transform of the LM head."""
    transforms = (("head.weight", normalized),) if c.vocab_size != VOCAB_1 else ()
    return names.LLAMA | WeightsMapper((("W_pack", "qkv"),), transforms=transforms)


def normalized(head: Tensor, decoder: Any) -> Tensor:
    """Each row of [vocab, width] divided by its length."""
    from torch.nn.functional import normalize

    return normalize(head.float()).to(head.dtype)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both spellings that checkpoints have."""
    yield Architecture("BaichuanForCausalLM", decoder, weights)
    yield Architecture("BaiChuanForCausalLM", decoder, weights)
