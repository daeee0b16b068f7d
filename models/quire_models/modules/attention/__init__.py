"""The modules of attention parts: `self_attention` over keys and values, `latent` over compressed ones."""

from quire_models.modules.attention.self_attention import SelfAttention

__all__ = ["SelfAttention"]
