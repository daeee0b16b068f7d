"""Llama and models with its structure; and two demo models, for chat and for tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    DemoModel,
    GatedMlp,
    RMSNorm,
    Rope,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_demos import FOLDER as DEMOS


def attention(c: Any) -> Attention:
    head_dim = configs.head_dim(c)
    return Attention(
        heads=c.num_attention_heads,
        kv_heads=configs.kv_heads(c),
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=configs.optional(c, "attention_bias", False),
        out_bias=configs.optional(c, "attention_bias", False),
    )


def decoder(c: Any) -> Decoder:
    norm = RMSNorm(configs.optional(c, "rms_norm_eps", 1e-6))
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act), bias=configs.optional(c, "mlp_bias", False))
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(Block(attention(c), mlp, norm),) * c.num_hidden_layers,
        norm=norm,
        tied=configs.optional(c, "tie_word_embeddings", False),  # language models inside larger configs omit it
    )


def windowed(c: Any) -> Decoder:
    """Describes models whose config says of each layer whether it has a sliding window."""

    def block(layer: int, part: Any) -> Block:
        return replace(part, attn=replace(part.attn, window=configs.window(c, layer)))

    return with_blocks(decoder(c), block)


def with_layer_types(c: Any, decoder: Decoder) -> Decoder:
    """The decoder with the rotary embedding and the window of each layer's type."""

    def block(layer: int, part: Any) -> Block:
        rope = Rope.from_config(c, part.attn.head_dim, c.layer_types[layer])
        return replace(part, attn=replace(part.attn, rope=rope, window=configs.window(c, layer)))

    return with_blocks(decoder, block)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Llama, models with the same parts (IQuest-Coder, Code World Model), and the classes without a language head."""
    yield Architecture(name="LlamaForCausalLM", decoder=decoder, names=names.LLAMA)
    yield Architecture(name="IQuestCoderForCausalLM", decoder=decoder, names=names.LLAMA)
    yield Architecture(name="CwmForCausalLM", decoder=windowed, names=names.LLAMA)
    yield from headless("Llama", decoder, names.LLAMA)


DEMO = DEMOS / "demo_chat"
TOOLS_DEMO = DEMOS / "demo_tools"


def demo_adapters() -> Mapping[str, Path]:
    """Adapters of the chat demo: a style, a language, a format, and answers from passages in the prompt."""
    return {f"demo-{name}": DEMO / "adapters" / name for name in ("pirate", "dutch", "json", "reader")}


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """A chat model for a small invented world, and a model for tool calls and JSON; a few million parameters each."""
    yield DemoModel(
        name="demo-chat",
        summary="small chat model trained on text that this repository generates",
        folder=lambda: DEMO,
        adapters=demo_adapters,
        drafts=lambda: {"demo-chat-draft": DEMO / "draft", "demo-chat-heads": DEMO / "heads"},
    )
    yield DemoModel(
        name="demo-tools",
        summary="small model that calls the tools a request offers, and fills in JSON",
        folder=lambda: TOOLS_DEMO,
    )
