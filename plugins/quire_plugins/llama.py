"""Llama and models of its shape; and two demo models that ship with Quire: one chats, one calls tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quire import Architecture, DemoModel, hookimpl
from quire_models import Attention, Block, Decoder, GatedMlp, Norm, Rope, configs, names
from quire_models.headless import headless


def decoder(c: Any) -> Decoder:
    """`LlamaConfig` as parts."""
    norm = Norm(c.rms_norm_eps)
    head_dim = configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=configs.kv_heads(c),
        head_dim=head_dim,
        rope=Rope.of(c, head_dim),
        qkv_bias=configs.optional(c, "attention_bias", False),
        out_bias=configs.optional(c, "attention_bias", False),
    )
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act), bias=configs.optional(c, "mlp_bias", False))
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(Block(attention, mlp, norm),) * c.num_hidden_layers,
        norm=norm,
        tied=configs.optional(c, "tie_word_embeddings", False),  # text halves of larger configs leave it to them
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the forms without its head."""
    yield Architecture(name="LlamaForCausalLM", decoder=decoder, names=names.LLAMA)
    yield from headless("Llama", decoder, names.LLAMA)


DEMO = Path(__file__).parent / "demo_chat"
TOOLS_DEMO = Path(__file__).parent / "demo_tools"


def demo_adapters() -> Mapping[str, Path]:
    """A style, a language and a format."""
    return {f"demo-{name}": DEMO / "adapters" / name for name in ("pirate", "dutch", "json")}


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """A few million parameters each: questions about a small made-up world; calls of tools and filled JSON."""
    yield DemoModel(
        name="demo-chat",
        summary="small chat model trained on text that this repository generates",
        folder=lambda: DEMO,
        adapters=demo_adapters,
    )
    yield DemoModel(
        name="demo-tools",
        summary="small model that calls the tools a request offers, and fills in JSON",
        folder=lambda: TOOLS_DEMO,
    )
