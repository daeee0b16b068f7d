"""Blocks to compile: those of bundled architectures, and small ones made of single operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from tiny_architectures import CASES, COMMON, LENGTH_CASES, architectures

from quire.records import OpQuery
from quire_kernels import reference, select
from quire_kernels.cpu.compiled.program import Program
from quire_models.modules.blocks import DecoderModel
from quire_models.parts.decoder import Decoder
from quire_models.step.forward_batch import ForwardBatch, ForwardBuffers, KVCache, KvShape
from quire_models.testing import build as build_decoder

DTYPES = ["float32", "bfloat16"]


@cache
def decoder_of(case_id: str) -> Decoder:
    case = {**CASES, **LENGTH_CASES}[case_id]
    config = getattr(transformers, case.config_class)(**{**({} if case.own_sizes else COMMON), **case.config})
    return architectures()[case.architecture].decoder(config)


def model_of(case_id: str, dtype: str, recorded: bool) -> DecoderModel:
    """A decoder with random weights, the same ones whether it is recorded or not."""
    ops = select.choose(OpQuery("cpu", dtype))
    decoder = decoder_of(case_id)
    ops = ops if recorded else replace(ops, fused_blocks=reference.fused_blocks)
    model = build_decoder(decoder, ops, getattr(torch, dtype))
    made = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=made) * 0.15)
    for module in model.modules():
        if hasattr(module, "process_weights"):
            module.process_weights()
    return model


def pieces_of(case_id: str, dtype: str = "float32") -> list[str]:
    model = model_of(case_id, dtype, True)
    found = model.ops.fused_blocks(tuple(model.blocks), decoder_of(case_id).width)
    return ["program" if isinstance(piece, Program) else "block" for piece in found.stages]


RECORDED = [
    "llama",
    "llama tied, with biases",
    "llama yarn",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3 partly rotary",
]


RECORDED += ["olmo2", "granite", "gpt2", "opt", "opt with norms after", "longrope", "dynamic", "mistral"]


# --- programs out of blocks made up here ------------------------------------------------------------------

WIDTH = 24


Block = Callable[[Any, Any], Any]


@cache
def ops() -> select.Ops:
    return select.choose(OpQuery("cpu", "float32"))


@cache
def weights() -> dict[str, Any]:
    made = torch.Generator().manual_seed(0)
    matrix = torch.randn(2 * WIDTH, WIDTH, generator=made) / WIDTH**0.5
    return {
        "norm": torch.randn(WIDTH, generator=made),
        "gate_up": ops().linear(matrix, torch.randn(2 * WIDTH, generator=made), gated=True),
        "square": ops().linear(matrix[:WIDTH], None),
    }


def forward_of(tokens: int, adapters: Any = None, selected: Sequence[int] | None = None) -> ForwardBatch:
    """A step of one sequence. selected: the logit rows; None: all but the last token."""
    return ForwardBuffers(tokens, 1, 16, "cpu").fill(
        token_ids=[0] * tokens,
        positions=np.arange(tokens),
        slot_mapping=np.arange(tokens),
        query_starts=np.array([0, tokens], np.int32),
        contexts=np.array([tokens], np.int32),
        page_table=np.arange(16, dtype=np.int32)[None],
        logit_rows=np.arange(tokens - 1) if selected is None else np.asarray(selected),
        kv=KVCache.allocate([KvShape(1, 8)], 16, 16, torch.float32, "cpu"),
        adapters=adapters,
    )


def same(blocks: Sequence[Block], tokens: int = 5) -> list[str]:
    """Run blocks in both ways; gives what became of each piece."""
    x, fwd = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1)), forward_of(tokens)
    recorded = ops().fused_blocks(blocks, WIDTH)
    want = reference.fused_blocks(blocks, WIDTH)(x.clone(), fwd)
    for _ in range(2):
        assert torch.equal(recorded(x.clone(), fwd), want)
    assert want.isfinite().all()
    return ["program" if isinstance(piece, Program) else "block" for piece in recorded.stages]


def gated(x: Any, fwd: Any) -> Any:
    return x + weights()["square"](ops().gated_act(weights()["gate_up"](x), "silu"))


def normed(x: Any, fwd: Any) -> Any:
    h, x = ops().add_rms_norm(x * 0.5, x, weights()["norm"], 1e-5)
    return x + ops().act(h, "gelu_tanh")


def tanh(x: Any, fwd: Any) -> Any:
    return torch.tanh(x)


def reads_what_was_joined(x: Any, fwd: Any) -> Any:
    both = weights()["gate_up"](x)
    y = ops().gated_act(both, "silu")
    return both.split([WIDTH, WIDTH], -1)[0] + y


def half_of_something(x: Any, fwd: Any) -> Any:
    return weights()["gate_up"](x).split([WIDTH, WIDTH], -1)[1]


def asks_for_its_size(x: Any, fwd: Any) -> Any:
    return x * float(x.shape[0])


def times_a_tensor(x: Any, fwd: Any) -> Any:
    return x * weights()["norm"]


def in_float32(x: Any, fwd: Any) -> Any:
    return weights()["square"](x, float32=True)


def sums_heads(x: Any, fwd: Any) -> Any:
    heads = x.unflatten(-1, (-1, 8))
    return ((heads + heads) * 0.5 + heads).flatten(1)


def norms_heads(x: Any, fwd: Any) -> Any:
    return ops().rms_norm(x.unflatten(-1, (-1, 8)), weights()["norm"][:8], 1e-5).flatten(1)


def in_other_places(x: Any, fwd: Any) -> Any:
    a, b = weights()["gate_up"](x).split([WIDTH, WIDTH], -1)
    return ops().layer_norm(b, None, weights()["norm"], 1e-5) + a


def unchanged(x: Any, fwd: Any) -> Any:
    return x
