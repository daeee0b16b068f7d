"""GPT-OSS: attention sinks, alternating windows, and experts with biases and a clamped activation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    ClampedSwiglu,
    Decoder,
    Expert,
    ExpertRouter,
    Moe,
    Routing,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import with_mixtures

if TYPE_CHECKING:
    from torch import Tensor


def decoder(c: Any) -> Decoder:
    # constants of the code in some versions of transformers
    act = ClampedSwiglu(getattr(c, "swiglu_alpha", 1.702), getattr(c, "swiglu_limit", 7.0))
    router = ExpertRouter(Routing(c.num_experts_per_tok, "softmax", renormalize=True), bias=True)
    moe = Moe(Expert(c.intermediate_size, act, bias=True), c.num_local_experts, router)
    return with_attention(with_mixtures(llama.windowed(c), moe), sinks=True)


@dataclass(frozen=True)
class StackedExperts:
    """Experts [experts, inputs, outputs] as Quire has them, [experts, outputs, inputs].

    alternates: outputs of gate and up alternate. A quantized checkpoint has the rows of Quire's matrices, in the same
    order as the others.
    """

    alternates: bool

    def index(self, decoder: Any) -> Tensor | None:
        """The rows of a quantized matrix in Quire's order; None: they have it."""
        import torch

        if not self.alternates:
            return None
        return torch.arange(self._outputs(decoder)).view(-1, 2).T.flatten()

    def _outputs(self, decoder: Any) -> int:
        expert = decoder.blocks[0].mlp.expert
        return int(expert.first_outputs if self.alternates else decoder.width)

    def __call__(self, tensor: Tensor, decoder: Any) -> Tensor:
        """A whole tensor, or biases [experts, outputs]; tensors without data may have the shape of quantized ones."""
        matrices = tensor.dim() == 3 and not (tensor.is_meta and tensor.shape[1] == self._outputs(decoder))
        turned, index = tensor.transpose(1, 2) if matrices else tensor, self.index(decoder)
        return turned if index is None else turned.index_select(1, index.to(turned.device))


_GATE_UP, _DOWN = StackedExperts(True), StackedExperts(False)
NAMES = names.LLAMA | names.WeightsMapper(
    (("gate_up_proj_bias", "gate_up_bias"), ("down_proj_bias", "down_bias")),
    transforms=(
        ("*.experts.gate_up", _GATE_UP),
        ("*.experts.gate_up_bias", _GATE_UP),
        ("*.experts.gate_up.weight", _GATE_UP),  # adapters of the experts are refused: their layout differs
        ("*.experts.down", _DOWN),
        ("*.experts.down.weight", _DOWN),
    ),
)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model; its checkpoints are bfloat16, or have experts in MXFP4."""
    yield Architecture(name="GptOssForCausalLM", decoder=decoder, names=NAMES)
