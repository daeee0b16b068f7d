"""Apertus: norms of queries and keys, and MLPs without gates whose activation, xIELU, has two learnt numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from quire.plugin import (
    Architecture,
    Block,
    Decoder,
    Mlp,
    Part,
    RMSNorm,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import llama

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

NAMES = names.LLAMA | WeightsMapper(
    (("attention_layernorm", "attn_in"), ("feedforward_layernorm", "mlp_in"), ("act_fn", "act")),
    ignored=("*.act_fn.beta", "*.act_fn.eps"),  # 0.5 and -1e-6 in every checkpoint
)


@dataclass(frozen=True)
class Xielu:
    """The activation xIELU (arXiv 2411.13010), which is quadratic above zero.

    elementwise: ranks may divide its inputs.
    """

    elementwise: ClassVar[bool] = True

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_plugins.architectures.dense.xielu import XieluModule

        return XieluModule(builder)


def decoder(c: Any) -> Decoder:
    act: str | Part = Xielu() if c.hidden_act == "xielu" else configs.act(c.hidden_act)
    mlp = Mlp(c.intermediate_size, act, bias=False)
    norm = RMSNorm(c.rms_norm_eps)
    block = Block(replace(llama.attention(c), qk_norm=norm), mlp, norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("ApertusForCausalLM", decoder, NAMES)
    yield from headless("Apertus", decoder, NAMES)
