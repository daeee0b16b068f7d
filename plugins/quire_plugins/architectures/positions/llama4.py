"""Llama 4 (text): chunked attention, layers without positions, experts beside a shared one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Decoder,
    Expert,
    ExpertRouter,
    GatedMlp,
    Moe,
    QueryScaling,
    RMSNorm,
    Routing,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama

if TYPE_CHECKING:
    from torch import Tensor


def decoder(c: Any) -> Decoder:
    act = configs.act(c.hidden_act)
    dense, shared = GatedMlp(c.intermediate_size_mlp, act), GatedMlp(c.intermediate_size, act)
    router = ExpertRouter(Routing(c.num_experts_per_tok, "sigmoid"))
    moe = Moe(Expert(c.intermediate_size, act), c.num_local_experts, router, shared, weighs_inputs=True)
    scaling = QueryScaling(c.attn_scale, c.floor_scale, offset=1) if c.attn_temperature_tuning else None
    norm = RMSNorm(c.rms_norm_eps, affine=False) if c.use_qk_norm else None

    def change(layer: int, block: Any) -> Any:
        chunk = c.attention_chunk_size if c.layer_types[layer] == "chunked_attention" else None
        if c.no_rope_layers[layer]:  # the field says which layers rotate
            rope = replace(block.attn.rope, interleaved=True)
            attention = replace(block.attn, rope=rope, chunk=chunk, qk_norm=norm, norm_after_rope=True)
        else:
            attention = replace(block.attn, rope=None, chunk=chunk, query_scaling=scaling)
        return replace(block, attn=attention, mlp=moe if layer in c.moe_layers else dense)

    return with_blocks(llama.decoder(c), change)


def _outputs_first(tensor: Tensor, decoder: Any) -> Tensor:
    """Experts [experts, inputs, outputs] as [experts, outputs, inputs]."""
    return tensor.transpose(1, 2)


NAMES = names.LLAMA | names.WeightsMapper(
    (("feed_forward", "mlp"), ("shared_expert", "shared")),
    transforms=tuple((f"*.experts.{name}", _outputs_first) for name in ("gate_up", "down", "*.weight")),
)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model without its tower."""
    yield Architecture(name="Llama4ForCausalLM", decoder=decoder, names=NAMES)
